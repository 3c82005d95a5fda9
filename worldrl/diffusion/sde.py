"""Stochastic steps of a rectified flow: each one is a Gaussian whose log-probability is exact.

Flow-GRPO (2505.05470), DanceGRPO (2505.07818), EVA and the flow policies of πRL replace the ODE's Euler step by an SDE
step with the same marginals. They share one mean and differ in the noise scale s(σ) alone. With
dt = σ' - σ < 0 and velocity v = (x - ẑ) / σ::

    mean = x (1 + s² dt / 2σ) + v (1 + s² (1 - σ) / 2σ) dt          std = s √(-dt)

With few steps the sample keeps more noise than its level: s²δ²/σ + s⁴δ²/4σ² beyond σ'², with δ = σ - σ'. The last
step, to σ = 0, is therefore the ODE's. A coefficient-preserving step (flow-CPS) has the exact level, with the
predicted noise x̂₁ = x + (1 - σ) v::

    mean = (1 - σ') ẑ + σ' cos(πη/2) x̂₁                             std = σ' sin(πη/2)

Shapes legend: ``B`` rows, ``S`` steps of the sampler.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, nearest
from worldrl.diffusion.flow import expand_sigma, sigma_grid, velocity

NOISES = ("flow_grpo", "constant", "linear", "cps", "none")
CLIPS = {"mean": 1e-4, "sum": 0.2}  # default ranges of ratios, by reduction of the log-probability
REDUCTIONS = tuple(CLIPS)
LEAST_OF_SUMS = 0.01  # least range of ratios of sums


@dataclass
class Denoising:
    """How a video is denoised: number of steps, and fresh noise of each step."""

    steps: int = 4  # network evaluations per chunk ``S``; the last step is always the ODE's.
    # ``flow_grpo`` (η√(σ/(1-σ)); πRL's Flow-SDE too), ``constant`` (DanceGRPO), ``linear`` (EVA), ``cps``, or ``none``
    # (the ODE).
    noise: str = "flow_grpo"
    eta: float = 0.7  # η, the noise scale's factor; in ``cps`` the share of noise that is fresh, in [0, 1].
    eta_low: float = 0.0  # the scale at σ = 0 with ``linear``, which rises to ``eta`` at σ = 1.
    noisy_from: int = 0  # first step that may add noise.
    noisy_steps: int = 0  # number of noisy steps from there (MixGRPO's window); 0 takes all but the last.

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise SettingError(f"denoising.noise: unknown value {self.noise!r}{nearest(self.noise, NOISES)}")
        if self.steps < 1:
            raise SettingError(f"denoising.steps must be at least 1, got {self.steps}")
        if self.eta < 0 or self.eta_low < 0 or (self.noise == "cps" and self.eta > 1):
            raise SettingError(
                f"denoising.eta must not be negative, nor above 1 with cps, got {self.eta}, {self.eta_low}"
            )
        if self.noisy_from < 0 or self.noisy_steps < 0:
            raise SettingError("denoising.noisy_from and noisy_steps must not be negative")


@dataclass
class RatioRule:
    """How the log-probability of a step becomes one number, and how far its ratio may change.

    A mean over 4,000 numbers changes 4,000 times less than their sum: 1e-5 to 1e-4 suits means, 0.2 sums of an action.
    """

    reduce: str = "mean"  # ``mean`` or ``sum`` over a step's numbers.
    # ratios are clipped to [1 - clip, 1 + clip]; None takes the reduction's own range (:data:`CLIPS`).
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.reduce not in REDUCTIONS:
            raise SettingError(f"ratio.reduce: unknown value {self.reduce!r}{nearest(self.reduce, REDUCTIONS)}")
        if not 0 < self.range < 1:
            raise SettingError(f"ratio.clip must be in (0, 1), got {self.clip}")
        if self.reduce == "sum" and self.range < LEAST_OF_SUMS:
            raise SettingError(
                f"ratio.clip={self.clip} is a range of means; with ratio.reduce=sum it excludes nearly every step: give at "
                f"least {LEAST_OF_SUMS}, or null for {CLIPS['sum']}"
            )

    @property
    def range(self) -> float:
        """Largest distance of a ratio from 1."""
        return CLIPS[self.reduce] if self.clip is None else self.clip


# --- noise scales s(σ) ---------------------------------------------------------------------------------------------


def flow_grpo_scale(sigma: Tensor, eta: float, second: Tensor) -> Tensor:
    """s(σ) = η√(σ/(1-σ)); at σ = 1, where that is infinite, 1 - ``second`` (the grid's second level) divides."""
    return eta * torch.sqrt(sigma / (1 - torch.where(sigma < 1, sigma, second)))


def constant_scale(sigma: Tensor, eta: float) -> Tensor:
    """s(σ) = η."""
    return torch.full_like(sigma, eta)


def linear_scale(sigma: Tensor, low: float, high: float) -> Tensor:
    """s(σ) = low + (high - low) σ."""
    return low + (high - low) * sigma


# --- one step ------------------------------------------------------------------------------------------------------


def sde_mean(x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor, scale: Tensor) -> Tensor:
    """Mean of an SDE step of rows ``[B, ...]``; levels and scale are ``[B]``, ``sigma`` above 0."""
    dt, half = sigma_next - sigma, scale.square() / (2 * sigma)
    return x * expand_sigma(1 + half * dt, x) + v * expand_sigma((1 + half * (1 - sigma)) * dt, x)


def sde_std(sigma: Tensor, sigma_next: Tensor, scale: Tensor) -> Tensor:
    """Standard deviation ``[B]`` of an SDE step: s√(σ - σ')."""
    return scale * torch.sqrt(sigma - sigma_next)


def cps_mean(x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor, eta: Tensor) -> Tensor:
    """Mean of a coefficient-preserving step of rows ``[B, ...]``."""
    clean, noise = x - expand_sigma(sigma, x) * v, x + expand_sigma(1 - sigma, x) * v
    share = sigma_next * torch.cos(0.5 * math.pi * eta)
    return expand_sigma(1 - sigma_next, x) * clean + expand_sigma(share, x) * noise


def cps_std(sigma_next: Tensor, eta: Tensor) -> Tensor:
    """Standard deviation ``[B]`` of a coefficient-preserving step: σ' sin(πη/2)."""
    return sigma_next * torch.sin(0.5 * math.pi * eta)


def gaussian_log_density(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of each number under N(mean, std²), shaped like ``mean``; ``std`` broadcasts to it."""
    return -0.5 * ((value - mean) / std).square() - (std.log() + 0.5 * math.log(2 * math.pi))


def gaussian_log_prob(value: Tensor, mean: Tensor, std: Tensor, reduce: str) -> Tensor:
    """Log-density ``[B]`` under N(mean, std²), std ``[B]`` > 0, by ``mean`` or ``sum`` over all but the first axis."""
    each = gaussian_log_density(value, mean, expand_sigma(std, mean)).flatten(1)
    return each.mean(dim=1) if reduce == "mean" else each.sum(dim=1)


def gaussian_kl(mean: Tensor, reference: Tensor, std: Tensor) -> Tensor:
    """KL divergence ``[B]`` per number of two Gaussians with the same ``std`` ``[B]``: mean (μ - μ_ref)² / 2 std²."""
    return (mean - reference).square().flatten(1).mean(dim=1) / (2 * std.square())


# --- the steps of a sampler ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """Levels ``sigma [S + 1]`` from 1 to 0 and noise ``scale [S]``: s(σ), η with ``cps``, or 0, the ODE's."""

    sigma: Tensor
    scale: Tensor
    cps: bool

    @property
    def steps(self) -> int:
        """Network evaluations ``S``."""
        return len(self.scale)

    @property
    def noisy(self) -> list[int]:
        """Steps that add noise, and so have a log-probability."""
        return [step for step, scale in enumerate(self.scale.tolist()) if scale > 0]

    def level(self, step: Tensor) -> Tensor:
        """Level ``[B]`` before steps int64 ``[B]``."""
        return self.sigma.to(step.device)[step]

    def transition(self, x: Tensor, clean: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[B, ...]`` and deviation ``[B]`` after samples ``x`` at ``step [B]`` with prediction ``clean``."""
        sigma, after = (self.sigma.to(x.device, x.dtype)[index] for index in (step, step + 1))
        scale = self.scale.to(x.device, x.dtype)[step]
        v = velocity(x, clean, sigma)
        if self.cps:
            return cps_mean(x, v, sigma, after, scale), cps_std(after, scale)
        return sde_mean(x, v, sigma, after, scale), sde_std(sigma, after, scale)


def make_schedule(config: Denoising, shift: float = 1.0) -> Schedule:
    """Make a sampler's steps; the last, and those outside the window, are the ODE's. SettingError: no other."""
    sigma = sigma_grid(config.steps, shift)
    first, last = config.noisy_from, config.noisy_from + config.noisy_steps if config.noisy_steps else config.steps - 1
    if config.noise != "none" and not first < last <= config.steps - 1:
        raise SettingError(
            f"denoising: the noisy window, steps {first} to {last - 1} of {config.steps}, is empty or includes the last step, "
            "which adds no noise; give denoising.steps of at least 2, or a smaller window"
        )
    now, inside = sigma[:-1], torch.zeros(config.steps)
    inside[first:last] = 1
    return Schedule(sigma, inside * _scale(config, now, sigma[1]), config.noise == "cps")


def _scale(config: Denoising, sigma: Tensor, second: Tensor) -> Tensor:
    if config.noise == "flow_grpo":
        return flow_grpo_scale(sigma, config.eta, second)
    if config.noise == "linear":
        return linear_scale(sigma, config.eta_low, config.eta)
    return constant_scale(sigma, 0.0 if config.noise == "none" else config.eta)
