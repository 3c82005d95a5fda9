"""Exploration with correlated noise: part of a rollout's randomness is constant over its steps.

With independent draws, dozens of small errors average out and a rollout ends near the greedy one. With a constant
part (the extreme of coloured noise, Eberhard et al., "Pink noise is all you need") it deviates in one direction, and
a group's outcomes show which one is better. Each token keeps exactly the policy's distribution.

Shapes legend: ``B`` rows, ``L`` control steps per chunk, ``A`` action dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import CorrelatedNoise


def uniform_draws(
    generators: Sequence[torch.Generator], length: int, size: int, correlated_noise: CorrelatedNoise | None = None
) -> Tensor:
    """Draw uniform numbers ``[B, L, A]`` in [0, 1): Φ(√share · constant + √(1 - share) · own), a CPU stream per row."""
    if correlated_noise is None:
        return torch.stack([torch.rand(length, size, generator=g) for g in generators])
    own = torch.stack([torch.randn(length, size, generator=g) for g in generators])
    normal = correlated_noise.share**0.5 * correlated_noise.value[:, None] + (1 - correlated_noise.share) ** 0.5 * own
    # In float32 Φ(6) is 1: a draw of exactly 1 would fall off the distribution's end.
    return torch.special.ndtr(normal.double()).clamp(max=1 - 1e-12)


@dataclass
class Exploration:
    """How a policy's actions are drawn."""

    temperature: float = 1.0  # divides the logits.
    # share of the draws' variance that stays the same over a rollout; 0 makes draws independent.
    noise_correlation: float = 0.3

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SettingError(f"exploration.temperature must be above 0, got {self.temperature}")
        if not 0 <= self.noise_correlation <= 1:
            raise SettingError(f"exploration.noise_correlation must be in [0, 1], got {self.noise_correlation}")

    def correlated_noise(self, generators: Sequence[torch.Generator], size: int) -> CorrelatedNoise | None:
        """Draw the constant part of each rollout, ``size`` numbers, from its stream; None at correlation 0."""
        if self.noise_correlation == 0:
            return None
        return CorrelatedNoise(
            torch.stack([torch.randn(size, generator=g) for g in generators]), self.noise_correlation
        )
