"""Termination rules against Gymnasium's own environments, and the sign defect of one published rule.

Unit under test: ``termination_rule`` and the rules it finds.
"""

import math
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.world_models.offline.terminations import hopper, termination_rule

NO_ACTION = torch.zeros(1, 3)
real = pytest.mark.skipif(find_spec("imageio") is None, reason="Gymnasium's MuJoCo environments import imageio")


def ends(env_id: str, *next_obs: float, **env_kwargs) -> bool:
    row = torch.tensor([next_obs])
    return bool(termination_rule(env_id, env_kwargs)(row, NO_ACTION, row))


def healthy_hopper(**over: float) -> Tensor:
    row = torch.zeros(1, 11)
    row[0, 0] = 1.2
    for place, value in over.items():
        row[0, int(place[1:])] = value
    return row


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, False),
        ({"s0": 0.7}, True),
        ({"s0": 0.71}, False),
        ({"s0": 50.0}, False),
        ({"s1": 0.2}, True),
        ({"s1": -0.2}, True),
        ({"s1": -0.19}, False),
        ({"s5": 99.0}, False),
        ({"s5": 100.0}, True),
        ({"s5": -1000.0}, True),
        ({"s10": math.nan}, True),
        ({"s0": math.nan}, True),
        ({"s2": -math.inf}, True),
    ],
)
def test_hopper(over: dict[str, float], expected: bool) -> None:
    row = healthy_hopper(**over)
    assert bool(hopper(row, NO_ACTION, row)) is expected


def test_the_published_sign_defect_is_avoided() -> None:
    row = healthy_hopper(s5=-1000.0)
    defective = np.abs(row[:, 1:].numpy() < 100).all(axis=1)  # OfflineRL-Kit: abs of the comparison, not of the number
    assert bool(defective)  # "healthy"
    assert bool(hopper(row, NO_ACTION, row))  # ended, as in Gymnasium


@real
@pytest.mark.parametrize(
    ("env_id", "spread"),
    [("Hopper-v5", 0.3), ("Walker2d-v5", 0.6), ("Ant-v5", 0.4), ("Humanoid-v5", 0.5), ("InvertedPendulum-v5", 0.2)],
)
def test_rules_agree_with_gymnasium(env_id: str, spread: float) -> None:
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    rule, draw, told = termination_rule(env_id), numpy_stream(0, env_id), []
    for _ in range(60):
        qpos = env.init_qpos + spread * draw.standard_normal(env.init_qpos.shape)
        env.set_state(qpos, draw.standard_normal(env.init_qvel.shape))
        obs, _, terminated, _, _ = env.step(np.zeros(env.action_space.shape, np.float32))
        row = torch.tensor(obs)[None]
        told.append(terminated)
        assert bool(rule(row, NO_ACTION, row)) is bool(terminated)
    assert 0 < sum(told) < 60  # both answers occurred
    env.close()


@real
@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"])
def test_rules_know_what_the_environment_was_made_with(env_id: str) -> None:
    kwargs = {"exclude_current_positions_from_observation": False, "healthy_z_range": (0.5, 1.5)}
    env = gymnasium.make(env_id, **kwargs).unwrapped
    obs, _ = env.reset(seed=0)
    rule = termination_rule(env_id, {**kwargs, "reset_noise_scale": 0.1})
    row = torch.tensor(obs)[None]
    height = float(env.data.qpos[1 if env_id in ("Hopper-v5", "Walker2d-v5") else 2])
    assert bool(rule(row, NO_ACTION, row)) is not (0.5 < height < 1.5)
    assert not termination_rule(env_id, {"terminate_when_unhealthy": False})(row, NO_ACTION, row).any()
    env.close()


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Pendulum-v1", "halfcheetah-medium-v2", "Swimmer-v5"])
def test_tasks_without_an_end_never_end(env_id: str) -> None:
    assert not ends(env_id, *[1e6] * 17)


def test_d4rl_names_find_the_rule() -> None:
    assert ends("walker2d-medium-replay-v2", 0.79, *[0.0] * 16)
    assert not ends("walker2d-medium-replay-v2", 0.81, *[0.0] * 16)


def test_an_unknown_environment_says_how_to_pass_a_rule() -> None:
    with pytest.raises(SettingError, match=r"no termination rule .*'Hoper-v5'.*termination=never, termination=learned .*termination=hopper.*worldrl.terminations"):
        termination_rule("Hoper-v5")
