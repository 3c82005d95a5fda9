"""The page of ``worldrl imagine``: films and filmstrips, the real rollout beside the imagined one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.types import Episode
from worldrl.evaluation.report.model import Number, ReportData, Video
from worldrl.evaluation.report.words import interval, percent
from worldrl.evaluation.world_model.rollout_error import Replay
from worldrl.recipes.paired_films import pair_film, pair_strip

SECTIONS = ("videos", "filmstrips", "notes", "configuration")
NAMES = {True: "success", False: "failure"}
NOTES = (
    "The real rollout is the simulator's. The world model gets its first frame and its actions, and generates the rest.",
    "Imagined outcomes come from the world model's outcome head; real ones from the simulator.",
    "A handful of episodes is an illustration. `worldrl evaluate-world-model` measures a world model.",
)


def report_page(
    metrics: Mapping[str, Any],
    episodes: Sequence[Episode],
    result: Replay,
    imagined: NDArray[np.bool_],
    *,
    fps: float,
    seed: int,
) -> ReportData:
    """Gather what the page shows.

    ``result`` holds true and imagined frames of the E ``episodes``, ``imagined`` their imagined outcome, bool ``[E]``.
    """
    titles = titles_of(episodes, imagined)
    pairs = list(zip(titles, result.real, result.imagined, strict=True))
    stride = result.frame_stride
    return ReportData(
        title=f"imagine: {', '.join(sorted({episode.task for episode in episodes}))}",
        sentence=sentence(metrics),
        sections=SECTIONS,
        headline=headline(metrics),
        filmstrips=[
            pair_strip(title, "Real above imagined, same actions.", real, imagine_policy, stride=stride, first=stride)
            for title, real, imagine_policy in pairs
        ],
        videos=[
            Video(title, "Left: real. Right: imagined.", pair_film(real, imagine_policy, fps))
            for title, real, imagine_policy in pairs
        ],
        seeds=[seed],
        notes=NOTES,
    )


def titles_of(episodes: Sequence[Episode], imagined: NDArray[np.bool_]) -> list[str]:
    """Task and both outcomes of each, for example ``PickRedCube: real success, imagined failure``."""
    return [
        f"{episode.task}: real {NAMES[episode.success]}, imagined {NAMES[bool(success)]}"
        for episode, success in zip(episodes, imagined, strict=True)
    ]


def sentence(metrics: Mapping[str, Any]) -> str:
    """What was found, in one sentence."""
    aligned = metrics["outcome_alignment"]
    return (
        f"The world model predicts the outcome of {aligned['k']} of {aligned['n']} episodes correctly "
        f"({percent(aligned['rate'])}, 95 % interval {interval(aligned)})."
    )


def headline(metrics: Mapping[str, Any]) -> list[Number]:
    """Image error after the longest horizon that was measured, and the action-swap ratio."""
    steps = [name for name in metrics if name.startswith("closed_loop.psnr@")]
    swapped = metrics["action_swap_ratio"]  # None of a single episode
    tiles = [] if swapped is None else [Number("Action-swap ratio", round(swapped, 2), imagined=True)]
    if steps and metrics[steps[-1]] is not None:
        name = f"PSNR after {steps[-1].partition('@')[2]} steps"
        tiles.insert(0, Number(name, round(metrics[steps[-1]], 1), "dB", imagined=True))
    return tiles
