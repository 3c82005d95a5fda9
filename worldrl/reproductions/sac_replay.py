"""The dataset of a short SAC training: all its steps, with simulator states, like D4RL's medium-replay."""

from pathlib import Path

from worldrl.data.offline.trajectories import Trajectories, from_episodes
from worldrl.methods.offline.datasets.behaviour_sac import BehaviourSac, read_experience, train_behaviour
from worldrl.reproductions.stage_sharing import shared
from worldrl.rollout.vector.episodes import environment_info, make_environment

STRETCHES = 5  # Checkpoints of the training; each one cuts an episode


def experience(env: str, seed: int, stage: Path, *, steps: int, start: int, hidden: int) -> Trajectories:
    """Train SAC, unless another stage has; return all its steps. MissingExtraError without Stable-Baselines3."""
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
