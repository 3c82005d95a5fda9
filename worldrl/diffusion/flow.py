"""Rectified flow as pure functions: noise level σ runs from 1 (noise) to 0 (data).

x_σ = (1-σ)·z + σ·ε, velocity v = ε - z, so z = x_σ - σ·v. A network that predicts the clean latent ẑ is the same
flow with v = (x_σ - ẑ)/σ. The dynamics model predicts ẑ: robot dynamics are nearly deterministic, so few steps suffice.
"""

import torch
from torch import Tensor


def expand_sigma(sigma: Tensor, like: Tensor) -> Tensor:
    """Give levels ``[B]`` the axes of rows ``[B, ...]``."""
    return sigma.view(-1, *[1] * (like.ndim - 1))


def shift_sigma(sigma: Tensor, shift: float) -> Tensor:
    """Move noise levels toward 1 as Wan does: σ' = sσ / (1 + (s-1)σ)."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def add_noise(clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Return x_σ for rows ``[B, ...]`` at levels ``sigma`` ``[B]``."""
    sigma = expand_sigma(sigma, clean)
    return (1 - sigma) * clean + sigma * noise


def velocity(x: Tensor, clean: Tensor, sigma: Tensor) -> Tensor:
    """Velocity from ``x`` at level ``sigma`` ``[B]`` (> 0) straight to ``clean``."""
    return (x - clean) / expand_sigma(sigma, x)


def euler_step(x: Tensor, clean: Tensor, sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """Step from level ``sigma`` to ``sigma_next`` (``[B]`` each); at ``sigma_next = 0`` it lands on ``clean``."""
    return x + expand_sigma(sigma_next - sigma, x) * velocity(x, clean, sigma)


def sigma_grid(steps: int, shift: float = 1.0) -> Tensor:
    """Levels of an Euler sampler, ``[steps + 1]`` from 1 down to 0."""
    return shift_sigma(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift).float()


def draw_sigma(rows: int, *, pure_noise_share: float, shift: float, generator: torch.Generator) -> Tensor:
    """Draw training levels ``[rows]`` in (0, 1] on the generator's device: a share at 1, the rest shifted uniform."""
    # Few-step samplers spend half of their evaluations at σ = 1, so that level gets half of the mass.
    uniform = torch.rand(rows, generator=generator, device=generator.device).clamp_min(1e-3)
    pure = torch.rand(rows, generator=generator, device=generator.device) < pure_noise_share
    return torch.where(pure, 1.0, shift_sigma(uniform, shift))


# --- refinement ----------------------------------------------------------------------------------------------------


def refinement_grid(steps: int, smallest: float) -> Tensor:
    """Levels ``[steps]`` for refining a finished sample: σ_k = σ_min^(k/K), k = 1..K.

    PDE-Refiner (Lippe et al. 2023): noise hides all detail below its level, so later passes attend to fainter detail.
    """
    exponent = torch.arange(1, steps + 1, dtype=torch.float64) / max(steps, 1)
    return (smallest**exponent).float()


def draw_refinement(sigma: Tensor, levels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Replace a ``share`` of the training levels ``sigma`` ``[rows]`` by ``levels``, drawn uniformly."""
    # The uniform part of draw_sigma falls below a small σ in σ of the rows only.
    rows = len(sigma)
    which = torch.randint(len(levels), (rows,), generator=generator, device=generator.device)
    chosen = torch.rand(rows, generator=generator, device=generator.device) < share
    return torch.where(chosen, levels.to(sigma.device)[which], sigma)
