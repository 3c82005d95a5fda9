"""``worldrl imagine``: watch the world model dream, beside what the simulator does with the same actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.atomic import write_file
from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.log import console
from worldrl.core.rng import numpy_stream
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.report.filmstrip import draw_filmstrip, encode_png
from worldrl.evaluation.report.model import Filmstrip
from worldrl.evaluation.video import write_mp4
from worldrl.evaluation.world_model import (
    Replay,
    action_swap_ratio,
    closed_loop_psnr,
    outcome_report,
    outcomes,
    padded_actions,
    replay,
    whole_chunks,
)
from worldrl.jobs.opening import open_run
from worldrl.jobs.world_model_start import BUNDLED, SCRATCH, starting_world_model
from worldrl.rewards.success import SuccessRule
from worldrl.settings import non_negative, one_of, positive, setting

FRAMES_PER_STRIP = 12


@dataclass
class ImagineSettings:
    """Which world model dreams, and from which episodes."""

    run_dir: str = setting("runs/imagine", "where videos, filmstrips and result.json are written")
    seed: int = setting(0, "root of every random stream; also chooses the episodes")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")
    world_model: str = setting(BUNDLED, "bundled, or a world-model folder")
    data: str = setting("runs/collect/dataset", "dataset whose first frames and actions are given to the model")
    episodes: int = setting(8, "episodes to dream, successes and failures in turn")
    steps: int = setting(0, "control steps to dream; 0 takes the longest episode")

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("episodes", self.episodes)
        non_negative("steps", self.steps)
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch has learned nothing to dream of; give bundled or a folder")


def main(settings: ImagineSettings) -> dict[str, Any]:
    """Dream, write videos and filmstrips, measure.

    Args:
        settings: what to dream.

    Returns:
        The metrics: closed-loop PSNR, action-swap ratio, and imagined against real outcomes.
    """
    device = resolve_device(settings.device)
    dataset = EpisodeDataset.open(settings.data)
    with open_run("imagine", settings) as run:
        model = starting_world_model(
            settings.world_model, None, dataset.embodiment, seed=settings.seed, device=device
        ).eval()
        model.compute_dtype = resolve_dtype(settings.dtype, device)
        episodes = choose_episodes(dataset, settings.episodes, seed=settings.seed)
        steps = whole_chunks(settings.steps or max(map(len, episodes)), model.chunk_length)
        actions = np.stack([padded_actions(episode, steps) for episode in episodes])
        result = replay(model, episodes, actions, seed=settings.seed)
        rule = SuccessRule(model.config.outcome.threshold, model.config.outcome.debounce)
        imagined = outcomes(result, rule)
        write_pictures(run.path, episodes, result, imagined, fps=dataset.fps / model.frame_stride)
        metrics = {
            "episodes": len(episodes),
            **closed_loop_psnr(result),
            "action_swap_ratio": action_swap_ratio(model, episodes, steps, seed=settings.seed, true=result),
            **outcome_report(imagined, np.array([succeeds_within(episode, steps) for episode in episodes])),
        }
        run.write_result(metrics, seed=settings.seed, device=str(device))
        console().print(f"videos and filmstrips of {len(episodes)} episodes in {run.path}; {metrics}")
    return metrics


def succeeds_within(episode: Episode, steps: int) -> bool:
    """Whether the real episode succeeds in the time that was dreamed."""
    return episode.first_success is not None and episode.first_success <= steps


def choose_episodes(dataset: EpisodeDataset, count: int, *, seed: int) -> list[Episode]:
    """Draw episodes, successes and failures in turn as far as there are any."""
    order = numpy_stream(seed, "imagine").permutation(len(dataset))
    success = [int(i) for i in order if dataset.records[i].success]
    failure = [int(i) for i in order if not dataset.records[i].success]
    turns = [i for k in range(len(dataset)) for group in (success, failure) for i in group[k : k + 1]]
    return [dataset[i] for i in turns[:count]]


def write_pictures(
    folder: Path, episodes: Sequence[Episode], result: Replay, imagined: NDArray[np.bool_], *, fps: float
) -> None:
    """Write one side-by-side video and one filmstrip per episode."""
    for number, episode in enumerate(episodes):
        words = {True: "success", False: "failure"}
        title = f"{episode.task}: really {words[episode.success]}, imagined {words[bool(imagined[number])]}"
        name = f"{number:02d}-{episode.task}-{words[episode.success]}"
        real, dream = result.real[number], result.imagined[number]
        write_mp4(np.concatenate([real, dream], axis=2), folder / "videos" / f"{name}.mp4", fps)
        every = max(1, len(real) // FRAMES_PER_STRIP)
        labels = [f"step {(i + 1) * result.frame_stride}" for i in range(0, len(real), every)]
        strip = Filmstrip(title, "", {"real": real[::every], "imagined": dream[::every]}, labels)
        write_file(folder / "filmstrips" / f"{name}.png", encode_png(draw_filmstrip(strip)))
