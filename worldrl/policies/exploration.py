"""Exploration with correlated noise: part of a rollout's randomness is constant over its steps.

With independent draws, dozens of small errors average out and a rollout ends near the greedy one. With a constant
part it deviates in one direction, and a group's outcomes show which one is better. This is the extreme of coloured
noise (Eberhard et al., "Pink noise is all you need"). Each token keeps exactly the policy's distribution.

A policy that steers to a waypoint corrects such deviations before it arrives. So its waypoints themselves may be
displaced, all of a rollout's by the same vector: a policy whose aim is off then finds the object in some rollouts. Each
rollout has a standard deviation of its own, so that some search widely and others stay where the policy is right. Its
tokens no longer have the distribution that ``log_prob`` tells.

Shapes legend: ``B`` rows, ``L`` control steps per chunk, ``A`` action dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import CorrelatedNoise


def uniform_draws(
    generators: Sequence[torch.Generator], length: int, size: int, correlated_noise: CorrelatedNoise | None = None
) -> Tensor:
    """Draw uniform numbers ``[B, L, A]`` in [0, 1): Φ(√share · constant + √(1 - share) · own), a CPU stream per row."""
    if correlated_noise is None or not correlated_noise.share:
        return torch.stack([torch.rand(length, size, generator=g) for g in generators])
    own = torch.stack([torch.randn(length, size, generator=g) for g in generators])
    normal = correlated_noise.share**0.5 * correlated_noise.value[:, None] + (1 - correlated_noise.share) ** 0.5 * own
    # In float32 Φ(6) is 1: a draw of exactly 1 would fall off the distribution's end.
    return torch.special.ndtr(normal.double()).clamp(max=1 - 1e-12)


@dataclass(frozen=True)
class Exploration:
    """How a policy's actions are drawn."""

    temperature: float = 1.0  # divides the logits.
    # share of the draws' variance that stays the same over a rollout; 0 makes draws independent.
    noise_correlation: float = 0.3
    # largest standard deviation of a rollout's displacement of its waypoints, in standard deviations of the commands;
    # each rollout's is uniform between 0 and this.
    waypoint_noise: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SettingError(f"exploration.temperature must be above 0, got {self.temperature}")
        if not 0 <= self.noise_correlation <= 1:
            raise SettingError(f"exploration.noise_correlation must be in [0, 1], got {self.noise_correlation}")
        if self.waypoint_noise < 0:
            raise SettingError(f"exploration.waypoint_noise must not be negative, got {self.waypoint_noise}")

    def correlated_noise(self, generators: Sequence[torch.Generator], size: int) -> CorrelatedNoise | None:
        """Draw the constant part of each rollout, ``size`` numbers, from its stream; None where nothing is constant."""
        if not self.noise_correlation and not self.waypoint_noise:
            return None
        value = torch.stack([torch.randn(size, generator=g) for g in generators])
        waypoint = torch.zeros_like(value)
        if self.waypoint_noise:
            drawn = [torch.rand(1, generator=g) * torch.randn(size, generator=g) for g in generators]
            waypoint = self.waypoint_noise * torch.stack(drawn)
        return CorrelatedNoise(value, self.noise_correlation, waypoint)


DISPLACED = Exploration(temperature=0.25, noise_correlation=0.0, waypoint_noise=0.5)
"""How the actions of a policy with a waypoint are drawn where its likelihood is not needed."""


def at_temperature(temperature: float | None, noise_correlation: float = 0.0) -> Exploration | None:
    """Return how actions are drawn at a temperature; None: greedily, and SettingError where noise is asked for then."""
    if temperature is not None:
        return Exploration(temperature, noise_correlation)
    if noise_correlation:
        raise SettingError("noise_correlation: greedy actions have no noise; give a temperature with it")
    return None


def fill_null(settings: object, default: Exploration) -> Exploration:
    """Take what ``settings`` has of an exploration's fields and is not None, else the default's."""
    names = (field.name for field in fields(Exploration))
    return replace(default, **{name: value for name in names if (value := getattr(settings, name)) is not None})


def refuse_displacement(noise: CorrelatedNoise | None) -> None:
    """Raise SettingError where displaced waypoints are asked of a policy that has none."""
    if noise is not None and noise.waypoint.any():
        raise SettingError("exploration.waypoint_noise: this policy has no waypoint to displace; leave it out")


@dataclass
class ExplorationSettings:
    """How the actions of the policy that improves are drawn; null depends on policy and algorithm."""

    temperature: float | None = None  # divides the logits; null: 0.25 where waypoints are displaced, 1 elsewhere.
    # share of the draws' variance that stays the same over a rollout; null: 0 where they are displaced, 0.3 elsewhere.
    noise_correlation: float | None = None
    # largest standard deviation of a rollout's displacement of its waypoints, in standard deviations of the commands;
    # null: 0.5 where a policy with a waypoint imitates its successes, 0 elsewhere.
    waypoint_noise: float | None = None

    def __post_init__(self) -> None:
        self.drawn(imitates_waypoints=True)

    def drawn(self, *, imitates_waypoints: bool) -> Exploration:
        """Fill what is null; SettingError: displaced waypoints that no algorithm can learn from."""
        if self.waypoint_noise and not imitates_waypoints:
            raise SettingError(
                f"exploration.waypoint_noise={self.waypoint_noise}: needs a policy with a waypoint and improvement.algorithm=self_training, "
                "which needs no likelihood; leave it out"
            )
        displaces = imitates_waypoints if self.waypoint_noise is None else self.waypoint_noise > 0
        return fill_null(self, DISPLACED if displaces else Exploration())
