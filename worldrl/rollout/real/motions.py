"""Episodes grouped by their motion, so that no motion is on both sides of a split."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from worldrl.core.rng import numpy_stream
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rollout.real.specs import motion_key


def shuffled_motions(episodes: Sequence[Episode], *, seed: int, name: str) -> list[list[int]]:
    """Group episodes of one motion: copies in other visual styles, or one episode given twice.

    ``name`` is that of the order's random stream. Nothing of a dataset is decoded. Returns positions of the episodes of
    each motion, motions in random order.
    """
    motions: dict[Hashable, list[int]] = {}
    for number, one in enumerate(episodes.records if isinstance(episodes, EpisodeDataset) else episodes):
        motions.setdefault(motion_key(one), []).append(number)
    groups = list(motions.values())
    return [groups[place] for place in numpy_stream(seed, name).permutation(len(groups))]
