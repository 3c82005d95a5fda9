"""Exploration that lasts: part of a rollout's randomness stays the same from step to step.

Where every token is drawn apart, dozens of small errors average out and a rollout ends where the policy would have
ended anyway. With a lasting part (the extreme of coloured noise, Eberhard et al., "Pink noise is all you need") a
rollout leans one way throughout: group mates end in different places, and their outcomes tell which way was right.
Each token keeps exactly the policy's own distribution; only the draws of different steps go together.

Shapes legend: ``B`` rows, ``L`` control steps per chunk, ``A`` action dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import CorrelatedNoise


def uniform_draws(
    generators: Sequence[torch.Generator], length: int, size: int, correlated_noise: CorrelatedNoise | None = None
) -> Tensor:
    """Draw one uniform number for each token.

    Args:
        generators: one CPU stream per row, each giving ``L × A`` draws.
        length: ``L``.
        size: ``A``.
        correlated_noise: what lasts; None draws every token apart.

    Returns:
        ``[B, L, A]`` in [0, 1): Φ(√share · habit + √(1 - share) · own), uniform by itself whatever the share.
    """
    if correlated_noise is None:
        return torch.stack([torch.rand(length, size, generator=g) for g in generators])
    own = torch.stack([torch.randn(length, size, generator=g) for g in generators])
    normal = correlated_noise.share**0.5 * correlated_noise.value[:, None] + (1 - correlated_noise.share) ** 0.5 * own
    # In float32 Φ(6) is 1: a draw of exactly 1 would fall off the distribution's end.
    return torch.special.ndtr(normal.double()).clamp(max=1 - 1e-12)


@dataclass
class Exploration:
    """How a policy's actions are drawn.

    Attributes:
        temperature: divides the logits.
        noise_correlation: share of the draws' variance that stays the same over a rollout; 0 draws every token apart.
    """

    temperature: float = 1.0
    noise_correlation: float = 0.3

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.temperature > 0:
            raise SettingError(f"exploration.temperature must be above 0, got {self.temperature}")
        if not 0 <= self.noise_correlation <= 1:
            raise SettingError(f"exploration.noise_correlation must be in [0, 1], got {self.noise_correlation}")

    def correlated_noise(self, generators: Sequence[torch.Generator], size: int) -> CorrelatedNoise | None:
        """Draw each rollout's lasting part, ``size`` numbers of an action, from its stream; None where nothing lasts."""
        if self.noise_correlation == 0:
            return None
        return CorrelatedNoise(
            torch.stack([torch.randn(size, generator=g) for g in generators]), self.noise_correlation
        )
