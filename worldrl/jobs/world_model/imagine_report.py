"""The page of ``worldrl imagine``: films and filmstrips, the real rollout beside the imagined one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.storage.provenance import package_versions
from worldrl.core.storage.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.evaluation.report.model import Filmstrip, Number, ReportData, Video
from worldrl.evaluation.report.store import save_report
from worldrl.evaluation.report.words import interval, percent
from worldrl.evaluation.world_model.film import encode_mp4
from worldrl.evaluation.world_model.rollout_error import Replay

SECTIONS = ("videos", "filmstrips", "notes", "configuration")
FRAMES_PER_STRIP = 12
NAMES = {True: "success", False: "failure"}
NOTES = (
    "The real rollout is the simulator's. The world model gets its first frame and its actions, and generates the rest.",
    "Imagined outcomes come from the world model's outcome head; real ones from the simulator.",
    "A handful of episodes is an illustration. `worldrl evaluate-world-model` measures a world model.",
)


def write_page(
    run: RunDirectory,
    metrics: Mapping[str, Any],
    episodes: Sequence[Episode],
    result: Replay,
    imagined: NDArray[np.bool_],
    *,
    fps: float,
    seed: int,
) -> Path:
    """Write ``report.json`` and ``report.html``.

    Args:
        run: of the command.
        metrics: of ``result.json``.
        episodes: that were imagined, E of them.
        result: their true and imagined frames.
        imagined: bool ``[E]``, imagined outcome.
        fps: of the films.
        seed: of the run.
    """
    titles = [title_of(episode, bool(success)) for episode, success in zip(episodes, imagined, strict=True)]
    data = ReportData(
        title=f"imagine: {', '.join(sorted({episode.task for episode in episodes}))}",
        sentence=sentence(metrics),
        sections=SECTIONS,
        headline=headline(metrics),
        filmstrips=[strip(title, result, row) for row, title in enumerate(titles)],
        videos=[film(title, result, row, fps) for row, title in enumerate(titles)],
        seeds=[seed],
        configuration=run.config,
        versions=package_versions(),
        provenance={"command": run.resume_command, "config hash": run.config_hash[:16]},
        notes=NOTES,
    )
    return save_report(data, run.path)


def title_of(episode: Episode, imagined: bool) -> str:
    """Task and both outcomes, for example ``PickRedCube: real success, imagined failure``."""
    return f"{episode.task}: real {NAMES[episode.success]}, imagined {NAMES[imagined]}"


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


def film(title: str, result: Replay, row: int, fps: float) -> Video:
    """Real on the left, imagined on the right."""
    frames = np.concatenate([result.real[row], result.imagined[row]], axis=2)
    return Video(title, "Left: real. Right: imagined.", encode_mp4(frames, fps))


def strip(title: str, result: Replay, row: int) -> Filmstrip:
    """Real above imagined, about twelve frames."""
    every = max(1, len(result.real[row]) // FRAMES_PER_STRIP)
    rows = {"real": result.real[row][::every], "imagined": result.imagined[row][::every]}
    labels = [f"step {result.frame_stride * (1 + frame)}" for frame in range(0, len(result.real[row]), every)]
    return Filmstrip(title, "Real above imagined, same actions.", rows, labels)
