"""How much a model-based method imagines, how often, and the share of it in a batch."""

from dataclasses import dataclass

from worldrl.methods.offline.agent import require_rules


@dataclass(frozen=True)
class Imagining:
    """Settings of imagined experience; defaults are those that MOPO, MOBILE and RAVL share."""

    horizon: int = 5  # steps k of a rollout.
    real_ratio: float = 0.05  # share r of recorded rows in a batch, rounded down.
    rollouts: int = 50_000  # rollouts begun at recorded states at each refresh.
    refresh_every: int = 1000  # updates between two refreshes.
    generations: int = 5  # refreshes whose rows the buffer holds.
    penalty: float = 0.0  # λ in r̃ = r − λ u, with the world's uncertainty u.

    def __post_init__(self) -> None:
        rules = {
            "at least 1": "horizon rollouts refresh_every generations",
            "in [0, 1]": "real_ratio",
            "zero or more": "penalty",
        }
        require_rules(self, "imagining", rules)

    @property
    def capacity(self) -> int:
        """Rows that the buffer holds: rollouts · horizon · generations."""
        return self.rollouts * self.horizon * self.generations

    def real_rows(self, batch_size: int) -> int:
        """Recorded rows of a batch: ⌊batch_size · r⌋."""
        return int(batch_size * self.real_ratio)
