"""The page of ``worldrl imagine``: films and filmstrips, the real rollout beside the imagined one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldrl.evaluation.report.model import Number, ReportData
from worldrl.evaluation.report.words import interval, percent
from worldrl.recipes.world_model.replayed_films import Replayed

SECTIONS = ("videos", "filmstrips", "notes", "configuration")
NOTES = (
    "The real rollout is the simulator's. The world model gets its first frame and its actions, and generates the rest.",
    "Imagined outcomes come from the world model's outcome head; real ones from the simulator.",
    "A handful of episodes is an illustration. `worldrl evaluate-world-model` measures a world model.",
)


def report_page(metrics: Mapping[str, Any], films: Replayed, *, seed: int) -> ReportData:
    """Gather what the page shows."""
    return ReportData(
        title=f"imagine: {', '.join(sorted({episode.task for episode in films.episodes}))}",
        sentence=sentence(metrics),
        sections=SECTIONS,
        headline=headline(metrics),
        filmstrips=films.filmstrips(),
        videos=films.videos(),
        seeds=[seed],
        notes=NOTES,
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """What was found, in one statement."""
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
