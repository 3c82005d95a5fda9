"""How much is imagined, how often, and how much of it an agent sees: settings that every model-based method has."""

from __future__ import annotations

from dataclasses import dataclass

from worldrl.methods.offline.agent import require


@dataclass(frozen=True)
class Imagining:
    """Settings of imagined experience; defaults are those that MOPO, MOBILE and RAVL share.

    Attributes:
        horizon: steps k of a rollout.
        real_ratio: share r of recorded rows in a batch, rounded down.
        rollouts: rollouts begun at recorded states at each refresh.
        refresh_every: updates between two refreshes.
        generations: refreshes whose rows the buffer holds.
        penalty: λ in r̃ = r − λ u, with the world's uncertainty u.
    """

    horizon: int = 5
    real_ratio: float = 0.05
    rollouts: int = 50_000
    refresh_every: int = 1000
    generations: int = 5
    penalty: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("horizon", "rollouts", "refresh_every", "generations"):
            require(getattr(self, name) >= 1, f"imagining.{name}", "at least 1", getattr(self, name))
        require(0 <= self.real_ratio <= 1, "imagining.real_ratio", "in [0, 1]", self.real_ratio)
        require(self.penalty >= 0, "imagining.penalty", "zero or more", self.penalty)

    @property
    def capacity(self) -> int:
        """Rows that the buffer holds: rollouts · horizon · generations."""
        return self.rollouts * self.horizon * self.generations

    def real_rows(self, batch_size: int) -> int:
        """Recorded rows of a batch: ⌊batch_size · r⌋."""
        return int(batch_size * self.real_ratio)
