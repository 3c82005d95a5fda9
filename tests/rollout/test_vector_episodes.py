"""Unit under test: ``worldrl.rollout.vector.episodes``."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.rng import stream
from worldrl.data.offline.trajectories import DatasetInfo, VectorEpisode, from_episodes
from worldrl.rollout.vector.episodes import (
    StateInfo,
    check_spaces,
    dataset_environment,
    environment_info,
    make_environment,
    memoryless,
    play_episode,
    time_limit,
    uniform_policy,
)

pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it


class Linear:
    """An agent that pushes against the pole, with noise where it is given a generator."""

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        action = -0.3 * obs.sum(dim=1, keepdim=True)
        return action if generator is None else action + 0.3 * torch.randn(action.shape, generator=generator)


def play(env: Any, seed: int, *, sampled: bool) -> VectorEpisode:
    noise = stream(7, "noise", seed) if sampled else None
    return play_episode(env, environment_info(env, "test"), memoryless(Linear()), seed=seed, generator=noise)


@pytest.mark.parametrize("sampled", [False, True])
def test_an_episode_depends_on_its_seed_alone(sampled: bool) -> None:
    env = make_environment("InvertedPendulum-v5", max_episode_steps=60)
    forward = [play(env, seed, sampled=sampled) for seed in range(4)]
    fresh = make_environment("InvertedPendulum-v5", max_episode_steps=60)
    backward = [play(fresh, seed, sampled=sampled) for seed in (3, 1, 2, 0)]
    for a, b in zip(forward, [backward[i] for i in (3, 1, 2, 0)], strict=True):
        for name in ("obs", "action", "reward", "qpos", "qvel"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert not np.array_equal(forward[0].obs[0], forward[1].obs[0])


def test_setting_the_recorded_state_and_acting_gives_the_next_observation() -> None:
    env = make_environment("InvertedPendulum-v5", max_episode_steps=30)
    episode = play(env, 0, sampled=True)
    assert len(episode) > 3
    assert episode.qpos is not None
    assert episode.qvel is not None
    simulator: Any = env.unwrapped
    for step in range(len(episode)):
        env.reset(seed=99)
        simulator.set_state(episode.qpos[step], episode.qvel[step])
        obs, reward, *_ = env.step(episode.action[step])
        np.testing.assert_allclose(obs, episode.obs[step + 1], atol=1e-5)
        assert reward == pytest.approx(episode.reward[step])


def test_ends_are_distinguished_and_actions_are_in_the_environments_units() -> None:
    env = make_environment("Pendulum-v1", max_episode_steps=5)
    episode = play_episode(env, environment_info(env, "x"), uniform_policy(1), seed=3, generator=stream(0, "u"))
    assert (len(episode), episode.terminated, episode.truncated, episode.qpos) == (5, False, True, None)
    assert np.abs(episode.action).max() > 1
    fallen = make_environment("InvertedPendulum-v5")
    tipped = play_episode(fallen, environment_info(fallen, "x"), uniform_policy(1), seed=3, generator=stream(0, "u"))
    assert (tipped.terminated, tipped.truncated) == (True, False)


def test_a_policy_may_remember_its_own_episode_only() -> None:
    heard: list[list[float]] = []

    def begin() -> Any:
        heard.append([])

        def decide(obs: Tensor, reward: float, generator: torch.Generator | None) -> Tensor:
            heard[-1].append(reward)
            return torch.zeros(1)

        return decide

    env = make_environment("Pendulum-v1", max_episode_steps=3)
    episodes = [play_episode(env, environment_info(env, "x"), begin, seed=s, generator=None) for s in (0, 1)]
    assert [len(rewards) for rewards in heard] == [3, 3]
    for rewards, episode in zip(heard, episodes, strict=True):
        assert rewards[0] == 0
        np.testing.assert_allclose(rewards[1:], episode.reward[:-1], rtol=1e-6)


@pytest.mark.parametrize("action", [torch.tensor([float("nan")]), torch.zeros(2), torch.zeros(1, 1)])
def test_a_bad_action_is_refused(action: Tensor) -> None:
    env = make_environment("Pendulum-v1", max_episode_steps=3)
    with pytest.raises(ActionError, match="step 0: the policy's action"):
        play_episode(env, environment_info(env, "x"), lambda: lambda *_: action, seed=0, generator=None)


def test_the_uniform_policy_needs_a_generator() -> None:
    with pytest.raises(SettingError, match="give a generator"):
        uniform_policy(2)()(torch.zeros(3), 0.0, None)


def test_environments_that_cannot_serve_are_refused() -> None:
    with pytest.raises(SettingError, match=r"'Hoper-v5' is not registered; did you mean 'Hopper-v\d'\?"):
        make_environment("Hoper-v5")
    with pytest.raises(SettingError, match="has actions in Discrete"):
        make_environment("CartPole-v1")
    with pytest.raises(SettingError, match="cannot be made"):
        make_environment("Pendulum-v1", kwargs={"nonsense": 1})


def test_spaces_of_dataset_and_environment_must_agree() -> None:
    env = make_environment("Pendulum-v1", max_episode_steps=4)
    info = environment_info(env, "here.hdf5")
    data = from_episodes(info, [play_episode(env, info, uniform_policy(1), seed=0, generator=stream(0, "u"))])
    check_spaces(env, data)
    with pytest.raises(SettingError, match=r"here.hdf5: field 'obs' has 3 numbers"):
        check_spaces(make_environment("InvertedPendulum-v5"), data)
    with pytest.raises(SettingError, match=r"action low is \(-2.5,\)"):
        check_spaces(env, replace(data, info=replace(info, action_low=(-2.5,), action_high=(2.5,))))


def test_a_datasets_environment_is_made_as_it_says() -> None:
    info = environment_info(make_environment("Pendulum-v1", kwargs={"g": 3.0}, max_episode_steps=7), "x")
    env: Any = dataset_environment(info)
    assert (env.unwrapped.g, env.spec.max_episode_steps) == (3.0, 7)
    with pytest.raises(SettingError, match="names no environment"):
        dataset_environment(replace(info, env_id=None))
    with pytest.raises(SettingError, match="was wrapped in Twist"):
        dataset_environment(replace(info, env_wrappers=("Twist",)))


def test_state_info_tells_the_state_before_the_step() -> None:
    env = StateInfo(make_environment("InvertedPendulum-v5"))
    env.reset(seed=1)
    before = np.array(env.unwrapped.data.qpos)
    *_, info = env.step(np.array([0.5], np.float32))
    np.testing.assert_array_equal(info["qpos"], before)
    assert not np.array_equal(info["qpos"], env.unwrapped.data.qpos)
    assert info["executed"].tolist() == [0.5]


class Split(gymnasium.Env[Any, Any]):
    """Observations in a dictionary."""

    observation_space = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-1, 1, (1,))})
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, **_: Any) -> Any:
        return {"a": np.zeros(1, np.float32), "b": np.ones(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def test_dictionary_observations_are_flattened_and_endless_ones_refused() -> None:
    gymnasium.register("WorldrlTestSplit-v0", entry_point=Split)
    try:
        with pytest.raises(SettingError, match="has no time limit"):
            make_environment("WorldrlTestSplit-v0")
        env = make_environment("WorldrlTestSplit-v0", max_episode_steps=2)
        assert env.reset(seed=0)[0].tolist() == [0, 1, 1]
    finally:
        del gymnasium.registry["WorldrlTestSplit-v0"]


def test_time_limit_is_the_datasets_own_or_the_registered_one() -> None:
    data = DatasetInfo("x", (-2.0,), (2.0,), env_id="Pendulum-v1")
    assert time_limit(data) == 200
    assert time_limit(replace(data, max_episode_steps=30)) == 30
    assert time_limit(replace(data, env_id="Nowhere-v0")) is None
    assert time_limit(replace(data, env_id=None)) is None
