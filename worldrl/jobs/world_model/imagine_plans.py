"""``worldrl imagine plan=true``: a world model plans what instructions ask for, in stages, and a reward chooses.

From an episode's first frame and its instruction, each stage imagines ``staged.proposals`` continuations. The best one is kept where
it is good enough (``staged.min_reward``). Where none is, others are proposed, up to ``staged.attempts`` times. The next stage continues
from the one kept (MIND-V; ``rollout.imagined.staged_rollouts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.types import Episode
from worldrl.recipes.motion.video_rewards import open_rewards
from worldrl.recipes.paired_films import write_pair
from worldrl.registry import REWARD_MIXES
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.imagined.staged_rollouts import StagedConfig, StagedPlans, staged_rollouts
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.model import VideoWorldModel


class PlanSettings(Protocol):
    """What is read of a command's settings."""

    seed: int
    rewards: list[str]
    weights: list[float]
    folders: dict[str, str]
    mixing: str
    staged: StagedConfig


def imagine_plans(
    settings: PlanSettings, model: AnyVideoModel, episodes: Sequence[Episode], folder: Path, *, fps: int
) -> dict[str, Any]:
    """Plan from each episode's first frame, film the plans beside what was recorded, and say what was accepted.

    Returns ``plans`` and the ``chunks`` that were imagined in all. Of each plan: task, instruction, terms, and by stage
    whether it was good enough and how often it was proposed. None: ``staged.min_reward`` names no term, so nothing was
    compared. Raises SettingError (the world model does not plan, or a reward or term is unknown).
    """
    if not isinstance(model, VideoWorldModel) or not model.config.dynamics.planning:
        raise SettingError(
            "plan: this world model needs actions; train one with model.dynamics.planning=true training.action_dropout=0.5, or give "
            "plan=false"
        )
    reward, weights = open_rewards(settings, torch.device(model.device))
    records = [
        record_at(e, 0, memory_frames=model.memory_frames, frame_stride=model.frame_stride, source=f"episode {n}")
        for n, e in enumerate(episodes)
    ]
    mixing, seed = (
        partial(REWARD_MIXES.get(settings.mixing), weights=weights),
        stream_seed(settings.seed, "imagine", "plans"),
    )
    found = staged_rollouts(
        model, reward, mixing, records, settings.staged, frame_s=model.frame_stride / fps, seed=seed
    )
    plans = [plan_entry(found, n, episode, reward.names) for n, episode in enumerate(episodes)]
    for n, (episode, plan) in enumerate(zip(episodes, plans, strict=True)):
        film(folder, n, episode, plan, found.frames[n].numpy(), stride=model.frame_stride, fps=fps)
    return {"plans": plans, "chunks": found.chunks}


def plan_entry(found: StagedPlans, n: int, episode: Episode, terms: Sequence[str]) -> dict[str, Any]:
    """What came of one plan."""
    return {
        "task": episode.task,
        "instruction": episode.instruction,
        "terms": dict(zip(terms, found.terms[n].tolist(), strict=True)),
        "accepted": None if found.accepted is None else found.accepted[:, n].tolist(),
        "attempts": found.attempts[:, n].tolist(),
    }


def judgement(plans: Sequence[dict[str, Any]]) -> str:
    """Say how many stages of some plans were good enough; without a least value none was compared."""
    if any(plan["accepted"] is None for plan in plans):
        return "not filtered (staged.min_reward names no term)"
    good = [stage for plan in plans for stage in plan["accepted"]]
    return f"{sum(good)} of {len(good)} stages accepted"


def film(
    folder: Path, n: int, episode: Episode, plan: dict[str, Any], frames: np.ndarray, *, stride: int, fps: int
) -> None:
    """Write a plan beside the recording, whose last frame stays where it is shorter."""
    view = episode.main_view
    real = view[np.minimum(stride * np.arange(len(frames)), len(view) - 1)]
    title = f"{episode.instruction}: {judgement([plan])}"
    write_pair(
        folder, f"{n:02d}-{episode.task}-plan", title, real, frames, stride=stride, fps=fps / stride, second="planned"
    )
