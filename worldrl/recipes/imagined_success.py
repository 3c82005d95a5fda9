"""Imagined success of policies from recorded start frames: where it begins, and whether the world model may say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream, stream_seed
from worldrl.core.storage.log import Progress
from worldrl.core.storage.run import Stage
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.format import EpisodeRecord
from worldrl.evaluation.policy.imagined import Start, imagined_outcomes
from worldrl.rewards.success import HIGHEST_THRESHOLD, SuccessRule
from worldrl.world_models.loading import AnyVideoModel

LEAST_OUTCOMES = 3
"""Least numbers of successes and of failures among the episodes that test a success head."""
NOTES = (
    "Every success here is imagined by the world model; none of it was measured in a simulator or on a robot.",
    "The policies begin at the same recorded frames with the same noise, so their differences are paired.",
)
"""What every report on imagined success says."""


def longest(data: EpisodeDataset) -> dict[str, int]:
    """Steps of each task's longest recorded episode."""
    return {task: max(one.length for one in data.records if one.task == task) for task in data.tasks()}


def draw_starts(data: EpisodeDataset, count: int, limits: Mapping[str, int], *, seed: int) -> list[Start]:
    """Draw ``count`` episodes of each task at most, whose first frames are starts; ``limits`` are steps to imagine."""
    starts = list[Start]()
    for task in data.tasks():
        rows = [row for row, record in enumerate(data.records) if record.task == task]
        drawn = numpy_stream(seed, "rank", task).permutation(len(rows))[:count]
        starts += [Start(data[rows[place]], limits[task]) for place in sorted(drawn.tolist())]
    return starts


def too_few(episodes: Sequence[Episode | EpisodeRecord]) -> str:
    """Which outcomes are too few to test a success head, such as ``0 fail``; empty where none is."""
    won = sum(episode.success for episode in episodes)
    counts = {"succeed": won, "fail": len(episodes) - won}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count < LEAST_OUTCOMES)


def untested(episodes: Sequence[Episode], rule: SuccessRule) -> list[str]:
    """Why a success head is not known to tell success from failure; nothing where it is."""
    if not episodes:
        return ["it has learned from every episode of the recordings, so nothing is left to test it on"]
    few = too_few(episodes)
    reasons = [
        f"of the {len(episodes)} episodes that it has not learned from only {few} (at least {LEAST_OUTCOMES} are "
        "needed), so its success head is not tested"
    ]
    return [*(reasons if few else []), *uncalibrated(rule)]


def uncalibrated(rule: SuccessRule) -> list[str]:
    """Why a threshold of success says nothing; nothing where it does."""
    reason = "its success head was calibrated without a recorded success"
    return [reason] if rule.threshold >= HIGHEST_THRESHOLD else []


@dataclass(frozen=True)
class Draws:
    """How rollouts are drawn, ``batch`` at once; without a ``temperature`` a policy is greedy."""

    batch: int
    temperature: float | None
    seed: int


def imagined_success(
    stage: Stage,
    model: AnyVideoModel,
    folder: Path,
    label: str,
    starts: Sequence[Start],
    draws: Draws,
    *,
    finish: Callable[[Stage, dict[str, Any]], None] = Stage.finish,
) -> NDArray[np.bool_]:
    """Imagine one policy from every start, batch after batch; what an earlier session did is read. Returns bool ``[E]``."""
    if not stage.finished:
        finish(stage, imagined_summary(stage.folder, model, folder, label, starts, draws))
    return np.array(stage.summary["imagined_success"], np.bool_)


def imagined_summary(
    saved: Path, model: AnyVideoModel, folder: Path, label: str, starts: Sequence[Start], draws: Draws
) -> dict[str, Any]:
    """What the stage of one policy keeps; its batches are in the folder ``saved``."""
    with Progress(f"imagine {label}", total=len(starts), unit="rollouts") as progress:
        success = imagined_outcomes(
            model,
            folder,
            starts,
            saved,
            batch=draws.batch,
            temperature=draws.temperature,
            seed=stream_seed(draws.seed, "rank") % 2**31,
            advance=progress.advance,
        )
    return {"policy": label, "imagined_success": success.tolist()}
