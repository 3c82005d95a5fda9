import os

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import numpy as np
import pytest

import worldrl_envs


@pytest.fixture
def make():
    """Factory of environments that are closed after the test."""
    made = []

    def build(task="PickRedCube", **kwargs):
        kwargs.setdefault("disable_env_checker", True)
        made.append(gymnasium.make(worldrl_envs.env_id(task), **kwargs))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.fixture
def actions():
    """Forty random actions, the same in every test."""
    return np.random.default_rng(0).uniform(-1, 1, (40, 7)).astype(np.float32)
