"""Unit under test: ``rollout/suite_env.py``, a suite's workers as a Gymnasium vector environment (real processes)."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from worldrl.core.errors import ActionError, SettingError, WorkerEnvironmentError
from worldrl.rollout.suites.env import SuiteVecEnv
from worldrl.rollout.suites.libero import ENV_ID, libero_launch
from worldrl.simulators.process import Launch

TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
EPISODES = [{"task": "reach_up", "init_id": 4}, {"task": "reach_right", "init_id": 7}]


def make(*, workers=1, mode=AutoresetMode.NEXT_STEP, horizon=30, **settings):
    launch = Launch("fake", sys.executable, TARGET, {"image_size": 4})
    return SuiteVecEnv(
        launch, num_envs=2, workers=workers, horizon=horizon, image_size=4, autoreset_mode=mode, **settings
    )


def trace(workers, steps):
    """States, images and tasks of an expert-driven run with automatic resets."""
    env = make(workers=workers)
    try:
        obs, info = env.reset(seed=3)
        found = [(obs["state"], obs["image"], info["task"], info["init_id"])]
        for _ in range(steps):
            obs, reward, terminated, truncated, info = env.step(env.expert())
            assert env.observation_space.contains(obs)
            np.testing.assert_array_equal(reward, terminated.astype(float))
            found.append((obs["state"], obs["image"], info["task"], info["init_id"], terminated, truncated))
        return found
    finally:
        env.close()


def test_traces_do_not_depend_on_workers_and_rows_continue():
    one, two = trace(1, 60), trace(2, 60)
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert sum(step[4].sum() for step in one[1:]) >= 4  # several episodes ended, and others began
    assert len({tuple(step[3]) for step in one}) > 1


def test_named_episodes_waiting_rows_and_bad_input():
    env = make(mode=AutoresetMode.DISABLED, horizon=3)
    try:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(np.zeros((2, 7), np.float32))
        obs, info = env.reset(options={"episodes": EPISODES})
        assert (list(info["task"]), list(info["init_id"])) == (["reach_up", "reach_right"], [4, 7])
        assert obs["instruction"] == ("reach up", "reach right")
        with pytest.raises(ActionError, match="no state was changed"):
            env.step(np.full((2, 7), np.nan, np.float32))
        for _ in range(3):
            obs, _, terminated, truncated, _ = env.step(np.zeros((2, 7), np.float32))
        assert truncated.all()
        assert not terminated.any()
        frozen, _, terminated, truncated, _ = env.step(np.ones((2, 7), np.float32))  # rows that are over wait
        np.testing.assert_array_equal(frozen["state"], obs["state"])
        assert not (terminated | truncated).any()
        obs, info = env.reset(options={"episodes": EPISODES[:1], "reset_mask": np.array([False, True])})
        assert list(info["task"]) == ["reach_up", "reach_up"]
        bad = {"episodes": [{"task": "reach_up", "init_id": 50}] * 2}, {"episodes": EPISODES[:1]}, {"where": 1}
        for options in bad:
            with pytest.raises(SettingError):
                env.reset(options=options)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (None, {"episodes": [EPISODES[0], {"task": "reach_up", "init_id": 999}]}),
        (None, {"episodes": [EPISODES[0], {"task": "reach_up", "init_id": 1.5}]}),
        (None, {"episodes": [EPISODES[0], {"task": "reach_up"}]}),
        (None, {"episodes": [EPISODES[0], "reach_up"]}),
        (None, {"episodes": [EPISODES[0], {**EPISODES[1], "seed": -1}]}),
        (None, {"episodes": [EPISODES[0], {**EPISODES[1], "sed": 1}]}),
        (None, {"episodes": "ab"}),
        (-1, {}),
        (0, {"reset_mask": [1, 1]}),
        (0, {"episode": EPISODES}),
    ],
)
def test_a_refused_reset_counts_no_episode(seed, options):
    played = []
    for refused in (True, False):
        env = make()
        try:
            env.reset(seed=3)
            if refused:
                with pytest.raises(SettingError, match=r"episode|seed|init_id|reset_mask"):
                    env.reset(seed=seed, options=options)
            played.append(env.reset()[1]["init_id"].tolist())
        finally:
            env.close()
    assert played[0] == played[1]


def test_unknown_task_is_named_and_nobody_is_left():
    with pytest.raises(SettingError, match="did you mean 'reach_up'"):
        make(tasks=["reach_upp"])


def test_libero_is_registered_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path))
    assert ENV_ID in gymnasium.registry
    with pytest.raises(WorkerEnvironmentError, match=rf"{tmp_path}.*does not exist.*worldrl setup libero"):
        gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode="vector_entry_point", suite="libero_goal")
    with pytest.raises(SettingError, match="did you mean 'libero_goal'"):
        libero_launch("libero_gaol")
    with pytest.raises(SettingError, match="cameras"):
        libero_launch("libero_goal", cameras=("agentview",))
    with pytest.raises(SettingError, match="make_vec"):
        gymnasium.make(ENV_ID)
