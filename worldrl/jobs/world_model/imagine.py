"""``worldrl imagine``: imagined rollouts beside real ones with the same actions, or plans of the world model itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.observation import images_among
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.further import further_errors
from worldrl.evaluation.world_model.rerun_file import EXTRA, write_recording
from worldrl.evaluation.world_model.rollout_error import action_swap_ratio, closed_loop_psnr, outcome_report
from worldrl.jobs.world_model.imagine_plans import imagine_plans, judgement
from worldrl.jobs.world_model.imagine_report import report_page, sentence
from worldrl.recipes.run import open_run
from worldrl.recipes.sample_episodes import check_samples, record_samples
from worldrl.recipes.training_data import require_cameras, require_image_size
from worldrl.recipes.world_model.replayed_films import replayed
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, images_of, weights_folder
from worldrl.registry import REWARD_MIXES
from worldrl.rewards.motion.terms import chosen_terms
from worldrl.rollout.imagined.staged_rollouts import StagedConfig
from worldrl.settings import non_negative, one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel, open_world_model, require_one_view


@dataclass
class ImagineSettings:
    """Which world model imagines, and from which episodes."""

    run_dir: str = setting("runs/imagine", "where videos, filmstrips and result.json are written")
    seed: int = setting(0, "root of every random stream; also chooses the episodes")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")
    world_model: str = setting(BUNDLED, f"{SHIPPED}, or a world-model folder")
    data: str = setting(
        "", "dataset whose first frames and actions the model gets; empty records new episodes in the simulator"
    )
    tasks: list[str] = setting([], "with empty data: names of tasks to record; empty takes the three Pick tasks")
    episodes: int = setting(8, "episodes to imagine, successes and failures in turn")
    steps: int = setting(0, "control steps to imagine; 0 takes the longest episode")
    rerun: str = setting(
        "", "file .rrd to write for rerun's viewer, with images and numbers of all episodes; empty: none"
    )
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
        if self.data and self.tasks:
            raise SettingError("tasks: has no effect with data, whose episodes are drawn; give one of the two")
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        one_of("mixing", self.mixing, REWARD_MIXES.names())
        named = chosen_terms(self.rewards, self.weights)
        for name in self.folders:
            one_of("folders", name, tuple(named))
        if self.plan and self.steps:
            raise SettingError("steps: a plan is staged.stages times staged.stage_chunks chunks long; leave steps out")
        if self.rerun and self.plan:
            raise SettingError(
                "rerun: shows real beside imagined rollouts, and a plan has no real one; leave rerun out"
            )
        if self.rerun and not self.rerun.endswith(".rrd"):
            raise SettingError(f"rerun must name a file that ends with .rrd, got {self.rerun!r}")
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch is untrained, and cannot imagine; give bundled or a folder")


def main(settings: ImagineSettings) -> dict[str, Any]:
    """Imagine, write films, filmstrips and a page, measure.

    Returns the metrics: closed-loop PSNR, action-swap ratio, and imagined against real outcomes; of plans their
    rewards, which stages were accepted (where ``staged.min_reward`` asks for something), and after how many attempts.
    """
    device = resolve_device(settings.device)
    if settings.rerun:
        require("rerun", extra=EXTRA)  # a missing package is an error before anything is imagined
    dataset = open_recorded(settings.data, images_of(settings.world_model)) if settings.data else None
    with open_run("imagine", settings) as run:
        model = open_world_model(weights_folder(settings.world_model), device).eval()
        if dataset and dataset.embodiment != model.embodiment:
            raise SettingError(f"data: {settings.data} is of another robot than the world model {settings.world_model}")
        if dataset:
            require_image_size(
                dataset, model.config.codec.image_size, f"the size of world_model={settings.world_model}"
            )
            require_cameras([dataset], images_among(model.more))
        if settings.plan:
            require_one_view(model, "plan=true")
        model.compute_dtype = resolve_dtype(settings.dtype, device)
        dataset = dataset or own_episodes(run, settings, model)
        episodes = choose_episodes(dataset, settings.episodes, seed=settings.seed)
        if settings.plan:
            return finish_plans(run, settings, model, episodes, dataset.fps, str(device))
        films = replayed(model, episodes, fps=dataset.fps, seed=settings.seed, steps=settings.steps)
        result, steps = films.result, films.actions.shape[1]
        swapped = action_swap_ratio(model, episodes, steps, seed=settings.seed, true=result)
        metrics = {
            "episodes": len(episodes),
            **closed_loop_psnr(result),
            **further_errors(result),
            "action_swap_ratio": swapped if math.isfinite(swapped) else None,
            **outcome_report(films.imagined, np.array(films.actual)),
        }
        run.write_result(metrics, seed=settings.seed, device=str(device))
        if settings.rerun:
            write_recording(Path(settings.rerun), episodes, films.titles, films.actions, result)
        page = publish(run, report_page(metrics, films, seed=settings.seed))
        console().print(f"{sentence(metrics)}\nfilms: {run.path / 'videos'}\nreport: {page}", markup=False)
    return metrics


def own_episodes(run: RunDirectory, settings: ImagineSettings, model: AnyVideoModel) -> EpisodeDataset:
    """Record the episodes that no dataset gives, in a stage of the run.

    Raises SettingError (the embedded suite does not have the world model's robot).
    """
    tasks = check_samples(settings.tasks, model.embodiment)
    stage = run.stage("01-episodes")
    size = model.config.codec.image_size
    look = {"image_size": size, "images": images_among(model.more)}
    dataset = record_samples(stage.folder / "dataset", tasks, settings.episodes, seed=settings.seed, **look)
    if not stage.finished:
        stage.finish({"episodes": len(dataset)})
    return dataset


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
    summary = f"{len(episodes)} plans, {judgement(metrics['plans'])}, {metrics['chunks']} chunks imagined"
    console().print(f"{summary}; videos and filmstrips in {run.path}")
    return metrics


def choose_episodes(dataset: EpisodeDataset, count: int, *, seed: int) -> list[Episode]:
    """Draw episodes, successes and failures in turn as far as there are any."""
    order = numpy_stream(seed, "imagine").permutation(len(dataset))
    success = [int(i) for i in order if dataset.records[i].success]
    failure = [int(i) for i in order if not dataset.records[i].success]
    turns = [i for k in range(len(dataset)) for group in (success, failure) for i in group[k : k + 1]]
    return [dataset[i] for i in turns[:count]]
