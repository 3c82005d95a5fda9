"""EDM as pure functions: noise level σ runs from large (noise) to 0 (data), and x_σ = y + σ·n.

Equations and Table 1 are those of Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative
Models". DIAMOND's additions are from Alonso et al. 2024, "Diffusion for World Modeling: Visual Details Matter in
Atari". The probability-flow ODE dx/dσ = (x - D(x; σ))/σ is the rectified flow's in other coordinates. Euler's step is
therefore :func:`worldrl.diffusion.flow.euler_step`.

Shapes legend: ``B`` rows; a level ``sigma`` is ``[B]`` and belongs to all numbers of its row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worldrl.core.rng import draw
from worldrl.diffusion.flow import expand_sigma, velocity


class Preconditioning(NamedTuple):
    """The four factors around a raw network F (Table 1): D(x; σ) = c_skip·x + c_out·F(c_in·x; c_noise)."""

    c_skip: Tensor
    c_out: Tensor
    c_in: Tensor
    c_noise: Tensor


def precondition(sigma: Tensor, sigma_data: float) -> Preconditioning:
    """Return the factors of eq. 7 for levels ``sigma``, with unit variance of inputs and targets (Appendix B.6)."""
    total = sigma.square() + sigma_data**2
    return Preconditioning(
        c_skip=sigma_data**2 / total,
        c_out=sigma * sigma_data * total.rsqrt(),
        c_in=total.rsqrt(),
        c_noise=sigma.log() / 4,
    )


def denoised(x: Tensor, output: Tensor, scale: Preconditioning) -> Tensor:
    """Turn the raw network's output into the clean estimate D (eq. 7), rows ``[B, ...]``."""
    return expand_sigma(scale.c_skip, x) * x + expand_sigma(scale.c_out, x) * output


def loss_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """λ(σ) = 1/c_out² (Table 1): squared errors of D then count as squared errors of F (eq. 8)."""
    return (sigma.square() + sigma_data**2) / (sigma * sigma_data).square()


def flow_level(sigma: Tensor) -> Tensor:
    """Level in [0, 1) of the rectified flow with the same ratio of signal to noise: t = σ/(1 + σ)."""
    return sigma / (1 + sigma)


# --- training ------------------------------------------------------------------------------------------------------


def draw_sigma(
    rows: int, *, mean: float, std: float, lowest: float, highest: float, generator: torch.Generator
) -> Tensor:
    """Draw levels ``[rows]`` on the generator's device: ln σ ~ N(P_mean, P_std²) (Table 1), clipped at both ends."""
    normal = torch.randn(rows, generator=generator, device=generator.device)
    return (mean + std * normal).exp().clamp(lowest, highest)


def draw_noise(shape: Sequence[int], sigma: Tensor, offset: float, generator: torch.Generator) -> Tensor:
    """Draw the noise of clean rows ``[B, c, h, w]``: σ·n, and DIAMOND's offset per channel."""
    # Without an offset the mean colour is visible at every level, and samples from pure noise drift in brightness.
    noise = draw(torch.randn, tuple(shape), generator, device=generator.device)
    channel = draw(torch.randn, (*shape[:2], 1, 1), generator, device=generator.device)
    return expand_sigma(sigma, noise) * noise + offset * channel


def fold_offset(sigma: Tensor, offset: float) -> Tensor:
    """Return the level that the network receives: √(σ² + offset²), the standard deviation of :func:`draw_noise`."""
    return (sigma.square() + offset**2).sqrt()


# --- sampling ------------------------------------------------------------------------------------------------------


def karras_grid(steps: int, lowest: float, highest: float, rho: float) -> Tensor:
    """Levels of a sampler, ``[steps + 1]`` from ``highest`` over ``lowest`` to 0 (eq. 5); one step starts at ``highest``."""
    place = torch.linspace(0, 1, steps, dtype=torch.float64)
    root = highest ** (1 / rho) + place * (lowest ** (1 / rho) - highest ** (1 / rho))
    return torch.cat([root**rho, root.new_zeros(1)]).float()


def heun_step(
    x: Tensor, clean: Tensor, ahead: Tensor, clean_ahead: Tensor, sigma: Tensor, sigma_next: Tensor
) -> Tensor:
    """Step with the mean of the slopes at ``x`` and at Euler's result ``ahead`` (Algorithm 1, lines 6 to 8)."""
    slope = (velocity(x, clean, sigma) + velocity(ahead, clean_ahead, sigma_next)) / 2
    return x + expand_sigma(sigma_next - sigma, x) * slope
