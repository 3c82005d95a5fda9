"""Demonstrations as samples, and the report of a supervised training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.policies.samples import Samples, make_samples
from worldrl.rollout.real.motions import shuffled_motions


@dataclass(frozen=True)
class ImitationReport:
    """Result of a training."""

    episodes: int  # number trained on.
    held_out_episodes: int  # number held out.
    skipped_failures: int  # number left out because they did not succeed.
    samples: int  # number trained on.
    train: Any  # measurement on training samples.
    held_out: Any  # measurement on held-out samples.

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Demonstrations:
    """Successful episodes as samples; ``held_out`` is None without held-out episodes. ``counts`` are the report's."""

    samples: Samples
    held_out: Samples | None
    counts: dict[str, int]

    @classmethod
    def split(
        cls, episodes: Sequence[Episode], fraction: float, chunk_length: int, *, seed: int, more: Sequence[str] = ()
    ) -> "Demonstrations":
        """Leave failures out, hold some episodes out, and cut both parts into samples of ``chunk_length`` steps.

        ``more`` names further observations. Raises SettingError: no episode succeeded.
        """
        successful = [episode for episode in episodes if episode.success]
        if not successful:
            raise SettingError(
                f"episodes: none of {len(episodes)} succeeded; record demonstrations that fulfil the task"
            )
        train, held_out = split_episodes(successful, fraction, seed=seed)
        counts = {
            "episodes": len(train),
            "held_out_episodes": len(held_out),
            "skipped_failures": len(episodes) - len(successful),
        }
        parts = [make_samples(part, chunk_length, more) if part else None for part in (train, held_out)]
        return cls(parts[0] or make_samples(train, chunk_length), parts[1], counts)

    def report(self, train: Any, held_out: Any) -> ImitationReport:
        """Combine the measurements with the counts."""
        return ImitationReport(**self.counts, samples=len(self.samples), train=train, held_out=held_out)


def split_episodes(episodes: Sequence[Episode], fraction: float, *, seed: int) -> tuple[list[Episode], list[Episode]]:
    """Hold a ``fraction`` of the motions out, rounded; at least one stays for training.

    Frames of one motion are nearly equal, and so are its copies in other visual styles: none may stand on both sides.
    """
    motions = shuffled_motions(episodes, seed=seed, name="split-episodes")
    held_out = min(round(fraction * len(motions)), len(motions) - 1)
    chosen = {place for motion in motions[:held_out] for place in motion}
    train = [episode for i, episode in enumerate(episodes) if i not in chosen]
    return train, [episode for i, episode in enumerate(episodes) if i in chosen]
