"""The judge of ``eva``: does a planned video show the task done? A frozen copy of the planner whose outcome head says so.

The planner itself learns from successes alone. Its judge also reads the disturbed expert's failures, which is how it knows a
smooth motion that misses from one that does not. Neither its network nor its codec is trained again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.jsonfile import read_json, write_json
from worldrl.core.log import MetricLog
from worldrl.core.stats import auroc
from worldrl.core.types import Episode, ImaginedVideos
from worldrl.data.dataset import EpisodeDataset
from worldrl.jobs.stages import learn_world_model, split_held_out
from worldrl.jobs.world_model_start import WORLD_MODEL
from worldrl.rollout.judged_success import SuccessReward, success_reward
from worldrl.world_models.training_config import WorldModelTraining
from worldrl.world_models.video import VideoWorldModel

JUDGED = "judge.json"
"""What the judge says of demonstrations that it has not learned from."""


def with_failures(
    learned: Sequence[Episode], kept: Sequence[Episode], recorded: EpisodeDataset, share: float, *, seed: int
) -> tuple[list[Episode], list[Episode]]:
    """Add the recorded failures to what was learned and what was kept of the successes; ``share`` of them is kept too."""
    failures = list(recorded.subset(lambda episode: not episode.success).load())
    failed, *apart = split_held_out(failures, share, seed=seed)
    return [*learned, *failed], [*kept, *(episode for part in apart for episode in part)]


def open_judge(place: Path) -> dict[str, Any]:
    """Open what :func:`make_judge` left in ``place``: ``judge``, and ``judge_worth``, what it says of kept demonstrations."""
    judge = success_reward(str(place / WORLD_MODEL), [], torch.device("cpu"))
    return {"judge": judge, "judge_worth": read_json(place / JUDGED)}


def make_judge(
    planner: Path, steps: int, learned: Sequence[Episode], kept: Sequence[Episode], place: Path, *, seed: int
) -> None:
    """Train the outcome head of the planner in folder ``planner`` on recorded frames; leave the judge in ``place``.

    Args:
        planner: its artefact, which stays as it is.
        steps: of the outcome head.
        learned: demonstrations, failures among them.
        kept: those that it is held against.
        place: receives the judge, its curve and what it says of ``kept``.
        seed: of the training.
    """
    model = VideoWorldModel.load(planner)
    model.config.outcome.told = "instruction"
    training = WorldModelTraining(steps=0, outcome_steps=steps)
    with MetricLog(place) as log:
        learn_world_model(place, model, learned, training, seed=seed, log=log)
    model.save(place / WORLD_MODEL)
    write_json(place / JUDGED, worth(model, kept))


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
