"""The judge of ``eva``: does a planned video show the task done? A frozen copy of the planner whose outcome head says so.

The planner itself learns from successes alone. Its judge also reads the disturbed expert's failures, which is how it knows a
smooth motion that misses from one that does not; and, with ``practice``, the planner's own plans, each with what came of its
execution. An expert recovers too well to teach failure, and a plan that fails need not look as if it did.
Neither its network nor its codec is trained again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.errors import SettingError
from worldrl.core.jsonfile import read_json, write_json
from worldrl.core.log import MetricLog
from worldrl.core.stats import auroc
from worldrl.core.types import Episode, ImaginedVideos
from worldrl.jobs.reproductions.eva_parts import Parts
from worldrl.jobs.reproductions.eva_plans import executed_plans, planned_episodes
from worldrl.jobs.reproductions.eva_settings import EvaSettings, chunks_to, task_names_of
from worldrl.jobs.reproductions.shared import shared
from worldrl.jobs.stages import learn_world_model, split_held_out
from worldrl.jobs.world_model_start import WORLD_MODEL
from worldrl.rewards.mixing import mean_of_terms
from worldrl.rollout.judged_success import SuccessReward, success_reward
from worldrl.rollout.staged_rollouts import StagedConfig
from worldrl.world_models.training_config import WorldModelTraining
from worldrl.world_models.video import VideoWorldModel

JUDGED = "judge.json"
"""What the judge says of videos that it has not learned from."""
Split = tuple[list[Episode], list[Episode]]
"""What a judge learns from, and what is kept from it."""


def with_judge(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Parts:
    """Add the seed's judge to parts that have none; made unless another stage has.

    Raises:
        SettingError: there is no failure that it could learn from.
    """
    place = shared(folder, f"judge-seed-{seed}", lambda place: _learn(settings, seed, parts, place))
    return replace(parts, **open_judge(place))


def _learn(settings: EvaSettings, seed: int, parts: Parts, place: Path) -> None:
    learned, unseen = recorded_videos(parts, settings.kept, seed=seed)
    tried, kept = split(list(practised(settings, seed, parts)), settings.kept, seed=seed)
    if all(episode.success for episode in (*learned, *tried)):
        raise SettingError(
            f"eva: a judge needs failures, and the expert failed in none of {len(learned)} demonstrations; give "
            "change.practice=100 to execute plans for it, or a larger change.noise"
        )
    held = {"demonstrations": unseen, "plans": kept}
    make_judge(parts.model, settings.judge_steps, [*learned, *tried], held, place, seed=seed)


def split(episodes: Sequence[Episode], share: float, *, seed: int) -> Split:
    """Keep a share of some episodes apart."""
    learned, *apart = split_held_out(episodes, share, seed=seed) if episodes else ([],)
    return list(learned), [episode for part in apart for episode in part]


def recorded_videos(parts: Parts, share: float, *, seed: int) -> Split:
    """Add the recorded failures to what was learned and what was kept of the successes; ``share`` of them is kept too."""
    failed, apart = split(parts.failed, share, seed=seed)
    return [*parts.learned, *failed], [*parts.kept, *apart]


def practised(settings: EvaSettings, seed: int, parts: Parts) -> Iterator[Episode]:
    """Execute plans of every task from states of their own; yield their imagined frames with what really came."""
    for task in task_names_of(settings) if settings.practice else ():
        config = StagedConfig(proposals=1, stages=1, stage_chunks=chunks_to(settings, task))
        count = settings.practice
        for found in executed_plans(
            settings, parts, task, mean_of_terms, config, count=count, seed=seed, purpose="practice"
        ):
            yield from planned_episodes(settings, parts, found)


def open_judge(place: Path) -> dict[str, Any]:
    """Open what :func:`make_judge` left in ``place``: ``judge``, and ``judge_worth``, what it says of kept videos."""
    judge = success_reward(str(place / WORLD_MODEL), [], torch.device("cpu"))
    return {"judge": judge, "judge_worth": read_json(place / JUDGED)}


def make_judge(
    planner: VideoWorldModel,
    steps: int,
    learned: Sequence[Episode],
    kept: Mapping[str, Sequence[Episode]],
    place: Path,
    *,
    seed: int,
) -> None:
    """Train the outcome head of a copy of the planner; leave the judge in ``place``.

    Args:
        planner: stays as it is.
        steps: of the outcome head.
        learned: videos, failures among them.
        kept: those that it is held against, by kind.
        place: receives the judge, its curve and what it says of ``kept``.
        seed: of the training.
    """
    model = deepcopy(planner)
    model.config.outcome.told = "instruction"
    training = WorldModelTraining(steps=0, outcome_steps=steps)
    with MetricLog(place) as log:
        learn_world_model(place, model, learned, training, seed=seed, log=log)
    model.save(place / WORLD_MODEL)
    write_json(place / JUDGED, {kind: worth(model, episodes) for kind, episodes in kept.items()})


def worth(model: VideoWorldModel, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Say how well a judge tells successes from failures: the area under the ROC curve; None where one kind is missing."""
    score = np.array([judged(model, episode) for episode in episodes])
    true = np.array([episode.success for episode in episodes], dtype=bool)
    area = auroc(score[true], score[~true]) if 0 < true.sum() < len(true) else None
    return {"successes": int(true.sum()), "failures": int((~true).sum()), "auroc": area}


def judged(model: VideoWorldModel, episode: Episode) -> float:
    """Judge a recorded episode as if it had been imagined; its last frame stands still to the end of its chunk."""
    frames = torch.from_numpy(episode.main_view[:: model.frame_stride].copy())
    chunk = model.config.dynamics.chunk_frames
    missing = chunk * math.ceil((len(frames) - 1) / chunk) + 1 - len(frames)
    whole = torch.cat([frames, frames[-1:].expand(missing, *frames.shape[1:])])[None]
    latent = torch.zeros(1, whole.shape[1] - 1, *model.codec.latent_shape)
    apart = model.frame_stride / model.embodiment.control_hz
    return float(SuccessReward(model).score(ImaginedVideos(whole, latent, apart, [episode.instruction])))
