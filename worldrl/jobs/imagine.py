"""``worldrl imagine``: watch the world model dream, beside what the simulator does with the same actions, or plan by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.log import console
from worldrl.core.rng import numpy_stream
from worldrl.core.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset
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
from worldrl.jobs.align_world_model import MIXES
from worldrl.jobs.films import write_pair
from worldrl.jobs.imagine_plans import imagine_plans, judgement
from worldrl.jobs.opening import open_run
from worldrl.jobs.world_model_start import BUNDLED, SCRATCH, starting_world_model
from worldrl.rewards.several import chosen_terms
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.staged_rollouts import StagedConfig
from worldrl.settings import non_negative, one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel


@dataclass
class ImagineSettings:
    """Which world model dreams, and from which episodes."""

    run_dir: str = setting("runs/imagine", "where videos, filmstrips and result.json are written")
    seed: int = setting(0, "root of every random stream; also chooses the episodes")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")
    world_model: str = setting(BUNDLED, "bundled, or a world-model folder")
    data: str = setting("runs/collect/dataset", "dataset whose first frames and actions are given to the model")
    episodes: int = setting(8, "episodes to imagine, successes and failures in turn")
    steps: int = setting(0, "control steps to imagine; 0 takes the longest episode")
    plan: bool = setting(
        False,
        "plan what each episode's instruction asks for instead, staged.stages times staged.stage_chunks chunks long",
    )
    staged: StagedConfig = field(default_factory=StagedConfig)
    rewards: list[str] = setting(
        ["idm.moving_executability"], "with plan: rewards that choose among plans, as in align-world-model"
    )
    weights: list[float] = setting([], "with plan: one for each of rewards; none weighs all alike")
    folders: dict[str, str] = setting({}, "with plan: folders.NAME=FOLDER, each reward's own artefact")
    mixing: str = setting("gdpo", "with plan: how terms become one number, gdpo or mean")

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("episodes", self.episodes)
        non_negative("steps", self.steps)
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        one_of("mixing", self.mixing, tuple(MIXES))
        named = chosen_terms(self.rewards, self.weights)
        for name in self.folders:
            one_of("folders", name, tuple(named))
        if self.plan and self.steps:
            raise SettingError("steps: a plan is staged.stages times staged.stage_chunks chunks long; leave steps out")
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch is untrained, and cannot imagine; give bundled or a folder")


def main(settings: ImagineSettings) -> dict[str, Any]:
    """Dream, write videos and filmstrips, measure.

    Args:
        settings: what to dream.

    Returns:
        The metrics: closed-loop PSNR, action-swap ratio, and imagined against real outcomes; of plans their rewards, which stages were
        accepted (where ``staged.min_reward`` asks for something), and after how many attempts.
    """
    device = resolve_device(settings.device)
    dataset = EpisodeDataset.open(settings.data)
    with open_run("imagine", settings) as run:
        model = starting_world_model(
            settings.world_model, None, dataset.embodiment, seed=settings.seed, device=device
        ).eval()
        model.compute_dtype = resolve_dtype(settings.dtype, device)
        episodes = choose_episodes(dataset, settings.episodes, seed=settings.seed)
        if settings.plan:
            return finish_plans(run, settings, model, episodes, dataset.fps, str(device))
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


def finish_plans(
    run: RunDirectory,
    settings: ImagineSettings,
    model: AnyVideoModel,
    episodes: Sequence[Episode],
    fps: int,
    device: str,
) -> dict[str, Any]:
    """Plan, write ``result.json``, and print how many stages were good enough, where that was asked."""
    metrics = {"episodes": len(episodes), **imagine_plans(settings, model, episodes, run.path, fps=fps)}
    run.write_result(metrics, seed=settings.seed, device=device)
    told = f"{len(episodes)} plans, {judgement(metrics['plans'])}, {metrics['chunks']} chunks imagined"
    console().print(f"{told}; videos and filmstrips in {run.path}")
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
    words = {True: "success", False: "failure"}
    for number, episode in enumerate(episodes):
        title = f"{episode.task}: really {words[episode.success]}, imagined {words[bool(imagined[number])]}"
        name = f"{number:02d}-{episode.task}-{words[episode.success]}"
        pair, stride = (result.real[number], result.imagined[number]), result.frame_stride
        write_pair(folder, name, title, *pair, stride=stride, fps=fps, first=stride)
