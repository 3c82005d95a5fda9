"""Unit under test: scenes that no episode leads to."""

import gymnasium
import numpy as np
import pytest

import worldrl_envs  # noqa: F401  (registers the environments)
from worldrl_envs.arrangements import draw_arrangement
from worldrl_envs.scene import OBJECTS
from worldrl_envs.tasks import get_task, task_names


@pytest.mark.parametrize("task", task_names())
def test_every_task_can_be_arranged_and_hands_reach_their_places(task):
    env = gymnasium.make(f"worldrl/{task}-v0", image_size=8, disable_env_checker=True).unwrapped
    generator = np.random.default_rng(0)
    try:
        env.reset(seed=0)
        for _ in range(12):
            scene = draw_arrangement(get_task(task), generator=generator)
            obs, info = env.arrange(scene)
            upright = np.abs(scene.command[3:5]).max() == 0  # tilted ones at the far edge are out of reach
            assert np.abs(obs["state"][:3] - scene.command[:3]).max() < (2e-3 if upright else 4e-2)
            for name, pose in scene.poses.items():
                np.testing.assert_allclose(info["privileged"][name], pose, atol=1e-9)
            np.testing.assert_allclose(obs["state"][6], scene.finger)
    finally:
        env.close()


def test_what_is_held_is_between_the_fingers_and_the_rest_lies_on_the_table():
    generator, held, lying = np.random.default_rng(1), 0, 0
    for _ in range(300):
        scene = draw_arrangement(get_task("PickRedCube"), generator=generator)
        off_table = 0
        for name, pose in scene.poses.items():
            lowest = min(OBJECTS[name].rest_height, OBJECTS[name].size[0])
            assert pose[2] >= lowest - 1e-9
            assert np.linalg.norm(pose[3:]) == pytest.approx(1)
            if pose[2] > OBJECTS[name].rest_height + 0.012:
                off_table += 1
                assert np.abs(pose[:3] - scene.command[:3]).max() < 0.035
                assert 0.02 < scene.finger < 0.03
            lying += pose[2] == OBJECTS[name].size[0] != OBJECTS[name].rest_height
        assert off_table <= 1
        held += off_table
    assert 60 < held < 150
    assert lying > 5


def test_an_episode_after_an_arrangement_is_as_if_there_had_been_none():
    env = gymnasium.make("worldrl/PickRedCube-v0", image_size=8, disable_env_checker=True).unwrapped
    try:
        first, _ = env.reset(seed=5, options={"index": 2})
        env.arrange(draw_arrangement(get_task("PickRedCube"), generator=np.random.default_rng(0)))
        again, info = env.reset(seed=5, options={"index": 2})
        assert all(np.array_equal(first[key], again[key]) for key in first)
        assert info["step"] == 0
    finally:
        env.close()
