import os

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot_writer import LeRobotWriter
from worldrl.rollout.imagine import WorldModelVecEnv

ENV = "worldrl.rollout.registration:worldrl/Imagined-v0"


@pytest.fixture(scope="module")
def folders(tmp_path_factory, world_model, push_episodes, robot):
    """A saved world model and a dataset, as keyword arguments."""
    folder = tmp_path_factory.mktemp("imagined")
    world_model.save(folder / "model")
    fsync, os.fsync = os.fsync, lambda _: None
    try:
        for name, size in (("data", 16), ("large", 24)):
            with LeRobotWriter(
                folder / name, fps=20, cameras=("scene",), image_size=(size, size), embodiment=robot
            ) as writer:
                for episode in push_episodes if size == 16 else ():
                    writer.add_episode(episode)
    finally:
        os.fsync = fsync
    return {"world_model": folder / "model", "data": folder / "data"}


def make_vec(folders, **over):
    return gymnasium.make_vec(ENV, num_envs=4, vectorization_mode="vector_entry_point", **folders, **over)


def test_vector_environment_over_a_saved_model(folders, push_episodes):
    env = make_vec(folders, p_keyframe=0.0)
    assert isinstance(env.unwrapped, WorldModelVecEnv)
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    first = {episode.frames[0, 0].tobytes() for episode in push_episodes}
    assert {image.tobytes() for image in obs["image"]} <= first
    for _ in range(5):
        obs, *_ = env.step(env.action_space.sample())
    assert obs in env.observation_space
    env.close()


def test_starts_at_keyframes_and_horizons_of_the_data(folders, push_episodes):
    env = make_vec(folders, p_keyframe=1.0, keyframe_margin=3)
    _, info = env.reset(seed=0)
    assert set(info["start_step"]) <= {5}  # the gripper closes at frame 8
    longest = {e.task: max(len(o) for o in push_episodes if o.task == e.task) for e in push_episodes}
    assert env.unwrapped.horizon == longest
    assert make_vec(folders, horizon=9).unwrapped.horizon == 9
    assert make_vec(folders, autoreset_mode="Disabled").metadata["autoreset_mode"] == AutoresetMode.DISABLED


def test_single_environment_passes_gymnasiums_checker(folders):
    env = gymnasium.make(ENV, render_mode="rgb_array", **folders)
    check_env(env.unwrapped)
    env.close()


def test_single_environment_ends_and_begins_again(folders):
    env = gymnasium.make(ENV, horizon=8, p_keyframe=0.0, **folders)
    obs, _ = env.reset(seed=1)
    still = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    ends = [env.step(still)[2:4] for _ in range(8)]
    assert not any(any(end) for end in ends[:3])
    assert any(any(end) for end in ends)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(obs["image"], again["image"])
    env.close()


def test_what_does_not_fit_is_refused(folders, tmp_path):
    with pytest.raises(ArtefactError):
        make_vec({**folders, "world_model": tmp_path / "nothing"})
    with pytest.raises(SettingError, match="must hold episodes of 16 by 16 pixels"):
        make_vec({**folders, "data": folders["data"].parent / "large"})
