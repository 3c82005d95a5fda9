"""Reads a dataset of vectors for ``worldrl train-offline`` and prints remarks about it."""

from pathlib import Path
from typing import Any

from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.core.storage.log import console
from worldrl.data.offline.remarks import remarks
from worldrl.data.offline.trajectories import Trajectories
from worldrl.rollout.vector.episodes import make_environment

READING = ("action_low", "action_high", "clip_actions", "obs_keys")  # Settings of datasets of vectors only


def reading(settings: Any) -> dict[str, Any]:
    """Arguments of ``open_trajectories``; a D4RL file has no bounds of actions, so those of ``env=`` are taken."""
    given = {name: getattr(settings, name) for name in READING}
    if Path(settings.data).is_file() and settings.env is not None and not (given["action_low"] or given["action_high"]):
        given |= _bounds(settings)
    return {"env_id": settings.env, "max_episode_steps": settings.max_episode_steps, **given}


def _bounds(settings: Any) -> dict[str, list[float]]:
    """An environment's bounds; none where it cannot be made and no episode is played in it."""
    try:
        env = make_environment(settings.env, max_episode_steps=settings.max_episode_steps)
    except (SettingError, MissingExtraError):
        if settings.episodes or settings.video_episodes:
            raise
        return {}
    box: Any = env.action_space
    env.close()
    return {"action_low": box.low.tolist(), "action_high": box.high.tolist()}


def print_remarks(data: Trajectories) -> None:
    """Print the findings of the checks, one per line."""
    for line in remarks(data):
        console().print(line, soft_wrap=True, markup=False)
