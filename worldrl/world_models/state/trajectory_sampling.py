"""Sampling of trajectories, guided by a policy: the second half of policy-guided diffusion.

The sampler is EDM's stochastic one (Karras et al. 2022, Algorithm 2). As there, Euler step and correction both begin at
the sample with added noise; the published code of policy-guided diffusion begins the Euler step without it.

Guidance changes the actions alone, before each step but the last: a ← a + λ_i·g with
g = ∇_a Σ_t log π(tanh(unnorm(a_t)) | unnorm(s_t)). The behaviour policy's score is not subtracted, so the samples are
the behaviour's trajectories re-weighted by the target policy: a regularised mixture of both.

Shapes legend: ``B`` trajectories, ``L`` steps, ``S`` observation, ``A`` action, ``W = S + A + 2`` numbers per step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.diffusion.edm import heun_step, karras_grid
from worldrl.diffusion.flow import euler_step
from worldrl.world_models.state.trajectory_diffusion import TrajectoryDiffusion

LogProb = Callable[[Tensor, Tensor], Tensor]
"""Observations ``[N, S]`` and actions ``[N, A]`` to log-densities ``[N]``, differentiable in the actions."""
LARGEST_CHURN = math.sqrt(2) - 1  # upper limit of γ: EDM never adds more noise at a step than is present


@dataclass
class SamplerConfig:
    """EDM's stochastic sampler."""

    # of the sampler, two evaluations each but for the last; the published number is 256 with ``churn=80``.
    steps: int = 32
    rho: float = 7.0  # density of the levels at the lower end.
    churn: float = 10.0  # S_churn, noise added over all steps; each step adds churn/steps, 0.3125 at both sizes.
    churn_low: float = 0.05  # S_tmin, below which none is added.
    churn_high: float = 50.0  # S_tmax, above which none is added.
    churn_noise: float = 1.003  # S_noise, slightly above 1 against lost detail.
    second_order: bool = True  # Heun's steps; false takes Euler's at half the cost.

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"sampler.steps must be at least 1, got {self.steps}")
        if self.churn < 0:
            raise SettingError(f"sampler.churn must be 0 (none) or above, got {self.churn}")


def published_sampler() -> SamplerConfig:
    """Return the published sampler: 256 steps."""
    return SamplerConfig(steps=256, churn=80.0)


@dataclass
class GuidanceConfig:
    """Strength of the policy's guidance."""

    coefficient: float = 0.0  # c, 0 for no guidance.
    cosine: float = 0.3  # c_cos, more guidance at middle noise levels.
    normalise: bool = True  # scale each trajectory's gradient to unit length.
    at_denoised: bool = False  # take the gradient at the clean estimate, with one more evaluation per step.


def guidance_weight(step: int, steps: int, config: GuidanceConfig) -> float:
    """λ_i = c·[(1 - i/n) + c_cos·sin(π(i + 1)/n)]; 0 at the last step."""
    if step >= steps - 1:
        return 0.0
    return config.coefficient * (1 - step / steps + config.cosine * math.sin(math.pi * (step + 1) / steps))


def guidance_gradient(
    log_prob: LogProb, obs: Tensor, action: Tensor, mean: Tensor, std: Tensor, *, normalise: bool
) -> Tensor:
    """Return g = ∇_a Σ_t log π(tanh(a·std + mean) | s_t) for normalised actions ``[B, L, A]``, detached.

    ``obs`` ``[B, L, S]`` is in the data's units. ``normalise`` divides each trajectory's gradient by its length.
    """
    with torch.enable_grad():
        variable = action.detach().requires_grad_(True)
        squashed = torch.tanh(variable * std + mean)
        total = log_prob(obs.detach().flatten(0, 1), squashed.flatten(0, 1)).sum()
        (gradient,) = torch.autograd.grad(total, variable)
    if normalise:
        length = gradient.flatten(1).norm(dim=1)[:, None, None]
        gradient = gradient / (length + 1e-8)
    return gradient


def churn_share(sigma: float, config: SamplerConfig) -> float:
    """γ_i: share of the present level that is added as new noise (Algorithm 2)."""
    if not config.churn_low <= sigma <= config.churn_high:
        return 0.0
    return min(config.churn / config.steps, LARGEST_CHURN)


@torch.no_grad()
def sample_trajectories(
    model: TrajectoryDiffusion,
    count: int,
    sampler: SamplerConfig,
    *,
    generator: torch.Generator,
    guidance: GuidanceConfig | None = None,
    log_prob: LogProb | None = None,
) -> Tensor:
    """Draw ``count`` normalised trajectories ``[B, L, W]``; without a ``log_prob`` they are not guided."""
    config = model.config
    levels = karras_grid(sampler.steps, config.sigma_low, config.sigma_high, sampler.rho).tolist()
    x = levels[0] * _noise(model, count, generator)
    for step, (sigma, sigma_next) in enumerate(pairwise(levels)):
        if guidance is not None and log_prob is not None:
            x = _guided(model, x, sigma, guidance_weight(step, sampler.steps, guidance), guidance, log_prob)
        share = churn_share(sigma, sampler)
        if share:
            raised = sigma * (1 + share)
            x = x + math.sqrt(raised**2 - sigma**2) * sampler.churn_noise * _noise(model, count, generator)
            sigma = raised
        x = _step(model, x, sigma, sigma_next, second_order=sampler.second_order)
    return x


def _noise(model: TrajectoryDiffusion, count: int, generator: torch.Generator) -> Tensor:
    shape = (count, model.config.length, model.width)
    return torch.randn(shape, generator=generator, device=generator.device).to(model.device)


def _step(model: TrajectoryDiffusion, x: Tensor, sigma: float, sigma_next: float, *, second_order: bool) -> Tensor:
    here, there = x.new_full((len(x),), sigma), x.new_full((len(x),), sigma_next)
    clean = model.denoise(x, here)
    ahead = euler_step(x, clean, here, there)
    if not (second_order and sigma_next > 0):
        return ahead
    return heun_step(x, clean, ahead, model.denoise(ahead, there), here, there)


def _guided(
    model: TrajectoryDiffusion, x: Tensor, sigma: float, weight: float, guidance: GuidanceConfig, log_prob: LogProb
) -> Tensor:
    if not weight:
        return x
    point = model.denoise(x, x.new_full((len(x),), sigma)) if guidance.at_denoised else x
    place = slice(model.obs_size, model.obs_size + model.action_size)
    gradient = guidance_gradient(
        log_prob,
        model.denormalise(point)[..., : model.obs_size],
        point[..., place],
        model.mean[place],
        model.std[place],
        normalise=guidance.normalise,
    )
    moved = x.clone()
    moved[..., place] += weight * gradient
    return moved
