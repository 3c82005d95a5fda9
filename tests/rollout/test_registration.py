import os

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined import registration
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore

ENV = "worldrl.rollout.imagined.registration:worldrl/Imagined-v0"


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


@pytest.mark.parametrize(
    ("over", "text"),
    [
        ({"autoreset_mode": "SameStep"}, "must be NextStep or Disabled, got 'SameStep'"),
        ({"autoreset_mode": "sometimes"}, "must be NextStep or Disabled"),
        ({"p_keyframe": float("nan")}, "p_keyframe: must be a number from 0 to 1"),
        ({"keyframe_margin": -1}, "keyframe_margin: must be an integer of at least 0"),
        ({"horizon": 0}, "horizon: must be an integer of at least 1"),
        ({"device": "cuda:99"}, "device: 'cuda:99' was asked for"),
    ],
)
def test_settings_out_of_range_are_refused(folders, over, text):
    with pytest.raises(SettingError, match=text):
        make_vec(folders, **over)


def test_a_refused_reset_does_not_move_the_single_environments_own_draws(folders):
    env = gymnasium.make(ENV, **folders).unwrapped
    env.reset(seed=1)
    before = env.np_random.bit_generator.state
    with pytest.raises(SettingError, match="did you mean 'records'"):
        env.reset(seed=2, options={"record": []})
    assert env.np_random.bit_generator.state == before
    env.close()


def test_asynchronous_copies_show_their_instructions(folders, push_episodes):
    envs = gymnasium.make_vec(
        ENV, num_envs=2, vectorization_mode="async", vector_kwargs={"context": "spawn"}, **folders
    )
    obs, _ = envs.reset(seed=0)
    assert set(obs["instruction"]) <= {episode.instruction for episode in push_episodes}
    envs.close()


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")
def test_gymnasiums_checker_passes_with_joints_in_degrees(monkeypatch, scripted_world, make_record):
    arm = JointEmbodiment(("pan.pos", "gripper.pos"), (-100.0, 0.0), (100.0, 60.0), (300.0, 300.0), 30.0)
    scripted_world.embodiment = arm
    store = ResetStore([make_record(command=np.array([99, 50], np.float32))])
    rule = SuccessRule(0.6, 2)
    monkeypatch.setattr(
        registration,
        "make_vec",
        lambda **settings: WorldModelVecEnv(scripted_world, store, rule, horizon=12, **settings),
    )
    env = registration.ImaginedEnv(render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=0)
    for _ in range(12):
        obs, *_ = env.step(np.array([-100, 60], np.float32))
    assert obs in env.observation_space
    assert obs["command"].tolist() == [-21.0, 60.0]
