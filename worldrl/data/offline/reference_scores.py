"""Returns into scores: 0 is a random policy, 100 an expert.

    score = 100 (R - R_min) / (R_max - R_min)

D4RL's constants (Fu et al., arXiv 2004.07219; ``d4rl/infos.py``) were measured in mujoco-py's environments; versions 1
and 2 of its datasets reuse those of version 0. Gymnasium's ``-v5`` environments pay other rewards, so a self-made
dataset carries its own pair, and both scales are reported. A return without a reference is labelled raw.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypedDict

from worldrl.core.errors import SettingError
from worldrl.data.offline.known_tasks import task_of

Scale = Literal["raw", "d4rl", "dataset"]


class Reference(NamedTuple):
    """Returns that score 0 and 100."""

    min: float
    max: float


class Score(TypedDict):
    """A return on one scale; ``min`` and ``max`` are null where it is raw."""

    value: float
    scale: Scale
    min: float | None
    max: float | None


D4RL: Mapping[str, Reference] = {
    "halfcheetah": Reference(-280.178953, 12135.0),
    "hopper": Reference(-20.272305, 3234.3),
    "walker2d": Reference(1.629008, 4592.3),
    "ant": Reference(-325.6, 3879.7),
}


def d4rl_reference(name: str | None) -> Reference | None:
    """Return D4RL's constants for the whole id of an environment or dataset, None where it has none."""
    return D4RL.get(task_of(name) or "")


def normalised_score(value: float, reference: Reference) -> float:
    """Return ``100 (value - min) / (max - min)``; SettingError unless the reference is finite and max above min."""
    if not (math.isfinite(reference.min) and math.isfinite(reference.max) and reference.max > reference.min):
        raise SettingError(f"reference: needs finite min < max, got {reference.min} and {reference.max}")
    return 100 * (value - reference.min) / (reference.max - reference.min)


def scores(value: float, *, d4rl: Reference | None, dataset: Reference | None) -> dict[str, Score]:
    """Put a return, or a mean of them, on the scales ``d4rl`` and ``dataset`` if known, else ``{"raw": ...}``."""
    pairs: dict[Scale, Reference | None] = {"d4rl": d4rl, "dataset": dataset}
    known: dict[str, Score] = {
        scale: {"value": normalised_score(value, pair), "scale": scale, "min": pair.min, "max": pair.max}
        for scale, pair in pairs.items()
        if pair is not None
    }
    return known or {"raw": {"value": value, "scale": "raw", "min": None, "max": None}}
