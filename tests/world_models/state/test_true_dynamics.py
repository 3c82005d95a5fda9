"""The true simulator as a world: its successors are the recorded ones, and rows do not disturb each other.

Unit under test: ``TrueDynamics``, ``Simulator`` and ``dynamics_error``, on Gymnasium's real environments.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.interfaces import StateWorld
from worldrl.core.rng import numpy_stream, stream
from worldrl.data.offline.trajectories import DatasetInfo
from worldrl.recipes.offline.worlds import true_world
from worldrl.world_models.state.true_dynamics import Simulator, TrueDynamics, dynamics_error

pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it")


@dataclass
class Recording:
    """A random episode (or several) as a dataset would hold it."""

    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor
    qpos: np.ndarray
    qvel: np.ndarray


def record(env_id: str, steps: int, **env_kwargs: Any) -> Recording:
    env: Any = gymnasium.make(env_id, **env_kwargs).unwrapped
    draw, rows = numpy_stream(0, env_id), []
    obs, _ = env.reset(seed=1)
    for _ in range(steps):
        qpos, qvel = env.data.qpos.copy(), env.data.qvel.copy()
        action = draw.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        span = (env.action_space.high - env.action_space.low) / 2
        after, reward, terminated, _, _ = env.step(span * action)
        rows.append((obs, action, reward, after, terminated, qpos, qvel))
        obs = env.reset()[0] if terminated else after
    env.close()
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    tensors = [torch.tensor(column).float() for column in columns[:4]]
    return Recording(*tensors, torch.tensor(columns[4]), *columns[5:])


def world_of(env_id: str, data: Recording, **env_kwargs: Any) -> TrueDynamics:
    return TrueDynamics(env_id, data.obs, data.qpos, data.qvel, env_kwargs)


def test_rollouts_begin_where_the_rows_are(elsewhere: Any) -> None:
    data = record("Hopper-v5", 5)
    info = DatasetInfo("hopper", (-1.0,) * 3, (1.0,) * 3, env_id="Hopper-v5")
    rows = SimpleNamespace(obs=elsewhere(data.obs))
    world = true_world(SimpleNamespace(info=info, qpos=data.qpos, qvel=data.qvel), rows)  # pyright: ignore[reportArgumentType]
    _, obs = world.start(elsewhere(torch.tensor([3, 1])), generator=stream(0, "s"))
    assert obs.device == rows.obs.device
    assert torch.equal(obs.cpu(), data.obs[[3, 1]])


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5"])
def test_successors_are_the_recorded_ones(env_id: str) -> None:
    data = record(env_id, 120)
    world = world_of(env_id, data)
    checked: StateWorld = world
    state, obs = checked.start(torch.arange(120), generator=stream(0, "world"))
    assert torch.equal(obs, data.obs)
    _, outcome = checked.step(state, data.action, generator=stream(0, "world"))
    torch.testing.assert_close(outcome.obs, data.next_obs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(outcome.reward, data.reward, atol=1e-5, rtol=1e-5)
    assert torch.equal(outcome.terminated, data.terminated)
    assert (outcome.uncertainty == 0).all()
    if env_id == "Hopper-v5":
        assert data.terminated.any()


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5"])
def test_rows_continue_as_if_each_had_the_simulator_alone(env_id: str) -> None:
    data, noise = record(env_id, 12), stream(0, "world")
    world, few = world_of(env_id, data), torch.tensor([2, 9])
    state, _ = world.start(torch.arange(12), generator=noise)
    alone, _ = world.start(few, generator=noise)
    for _ in range(3):
        state, outcome = world.step(state, data.action, generator=noise)
        alone, other = world.step(alone, data.action[few], generator=noise)
        assert torch.equal(outcome.obs[few], other.obs)
        assert torch.equal(outcome.reward[few], other.reward)
    kept = world.select(state, torch.tensor([9]))
    assert np.array_equal(kept[0], alone[1])


def test_actions_span_the_environments_range() -> None:
    simulator = Simulator("InvertedPendulum-v5")  # forces of up to 3
    simulator.place(np.zeros(2), np.zeros(2))
    obs, _, _ = simulator.step(np.array([1.0], np.float32))
    direct: Any = gymnasium.make("InvertedPendulum-v5").unwrapped
    direct.reset(seed=0)
    direct.set_state(np.zeros(2), np.zeros(2))
    assert obs == pytest.approx(direct.step(np.array([3.0]))[0], abs=1e-9)


def test_state_read_off_an_observation() -> None:
    data, simulator = record("HalfCheetah-v5", 5), Simulator("HalfCheetah-v5")
    qpos, qvel = simulator.physics_of(data.obs[3].numpy())
    assert qpos == pytest.approx(np.concatenate([[0], data.qpos[3, 1:]]), abs=1e-6)
    assert qvel == pytest.approx(data.qvel[3], abs=1e-5)
    with pytest.raises(SettingError, match="cannot be set from it"):
        Simulator("Ant-v5").physics_of(np.zeros(105))  # contact forces come after positions and velocities


def test_dynamics_error_is_zero_on_true_steps_and_the_squared_error_elsewhere() -> None:
    data, simulator = record("HalfCheetah-v5", 6), Simulator("HalfCheetah-v5")
    true = dynamics_error(simulator, data.obs, data.action, data.next_obs)
    assert true.max() < 1e-8  # observations are stored as float32
    shifted = data.next_obs.clone()
    shifted[2, 4] += 3.0
    error = dynamics_error(simulator, data.obs, data.action, shifted)
    assert error[2].item() == pytest.approx(9 / 17, rel=1e-3)
    assert error[[0, 1, 3, 4, 5]].max() < 1e-8


def test_wrong_shapes_and_environments_are_named() -> None:
    data = record("Hopper-v5", 3)
    with pytest.raises(SettingError, match=r"qvel must be \(3, 6\), got \(2, 6\)"):
        TrueDynamics("Hopper-v5", data.obs, data.qpos, data.qvel[:2])
    with pytest.raises(SettingError, match="not one of Gymnasium's MuJoCo"):
        Simulator("Pendulum-v1")
    with pytest.raises(SettingError, match="cannot make environment 'Hoper-v5'"):
        Simulator("Hoper-v5")
    with pytest.raises(SettingError, match="may not name a module"):
        Simulator("somewhere:Hopper-v5")
    world = world_of("Hopper-v5", data)
    state, _ = world.start(torch.arange(3), generator=stream(0, "world"))
    with pytest.raises(ActionError, match=r"\[B, 3\]"):
        world.step(state, torch.zeros(2, 3), generator=stream(0, "world"))
