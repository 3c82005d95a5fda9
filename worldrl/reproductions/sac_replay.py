"""A dataset that costs minutes: all that a SAC lived through while it began to learn, simulator states beside it.

What D4RL calls medium-replay, without waiting for an expert: rows of every quality, from uniform actions on.
"""

from __future__ import annotations

from pathlib import Path

from worldrl.data.offline.trajectories import Trajectories, from_episodes
from worldrl.methods.offline.datasets.behaviour_sac import BehaviourSac, read_experience, train_behaviour
from worldrl.reproductions.stage_sharing import shared
from worldrl.rollout.vector.episodes import environment_info, make_environment

STRETCHES = 5
"""Checkpoints of the training; each one cuts an episode."""


def experience(env: str, seed: int, stage: Path, *, steps: int, start: int, hidden: int) -> Trajectories:
    """Train, unless another stage of the seed has, and return what was lived through.

    Args:
        env: registered Gymnasium id.
        seed: of the training.
        stage: folder of the stage that asks.
        steps: of the training, and rows of the dataset.
        start: its steps of uniform actions.
        hidden: width of its two hidden layers.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    config = BehaviourSac(
        steps=steps,
        hidden=(hidden, hidden),
        learning_starts=start,
        checkpoint_every=max(1, steps // STRETCHES),
        evaluation_episodes=1,
    )

    def make(folder: Path) -> None:
        train_behaviour(folder, env, config, seed=seed)

    place = shared(stage, f"data-seed-{seed}", make)
    return from_episodes(environment_info(make_environment(env), env), read_experience(place, steps))
