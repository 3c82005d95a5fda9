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
from worldrl.core.transitions import Transitions
from worldrl.data.offline.reference_scores import d4rl_reference
from worldrl.world_models.state.terminations import check_rule, hopper, never, termination_rule

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
    with pytest.raises(
        SettingError,
        match=r"no termination rule .*'Hoper-v5'.*termination=never, termination=learned .*termination=hopper.*worldrl.terminations",
    ):
        termination_rule("Hoper-v5")


@pytest.mark.parametrize(
    "name",
    [
        "dm_control/hopper-hop-v0",
        "dm_control/humanoid-walk-v0",
        "anything/ant-v0",
        "mo-hopper-v5",
        "module:mo-hopper-v5",
        "hopper-v5",
        "Hopper-v6",
        "my-hopper-medium-v2",
        "hopper-medium-v2-relabelled",
        "worldrl/hopper-v5/medium-v0",
        "HopperBackwards-v5",
        "",
    ],
)
def test_a_word_within_another_id_names_no_rule_and_no_scale(name: str) -> None:
    assert d4rl_reference(name) is None
    with pytest.raises(SettingError, match="termination=never, termination=learned"):
        termination_rule(name)


@pytest.mark.parametrize(
    "name",
    [
        "Hopper-v2",
        "Hopper-v5",
        "gymnasium:Hopper-v4",
        "hopper-medium-v2",
        "hopper_medium-v2",
        "mujoco/hopper/expert-v0",
    ],
)
def test_whole_ids_name_rule_and_scale(name: str) -> None:
    assert termination_rule(name) is hopper
    assert d4rl_reference(name) == (-20.272305, 3234.3)


def test_an_id_of_gymnasiums_that_another_class_was_registered_under_names_nothing() -> None:
    kept = gymnasium.registry["Hopper-v5"]
    gymnasium.registry.pop("Hopper-v5")
    gymnasium.register("Hopper-v5", entry_point="elsewhere:Hopper")
    try:
        with pytest.raises(SettingError, match="no termination rule is known"):
            termination_rule("Hopper-v5")
    finally:
        gymnasium.registry["Hopper-v5"] = kept


@pytest.mark.parametrize(
    "kwargs", [{"healthy_z_range": [1]}, {"healthy_z_range": "a"}, {"terminate_when_unhealthy": 3}]
)
def test_arguments_of_another_type_are_refused(kwargs: dict) -> None:
    with pytest.raises(SettingError, match=f"argument {next(iter(kwargs))}="):
        termination_rule("Hopper-v5", kwargs)


def rows_of(z: np.ndarray, terminated: np.ndarray) -> Transitions:
    obs = torch.zeros(len(z), 11)
    after = obs.clone()
    obs[:, 0], after[:, 0] = 1.2, torch.tensor(z, dtype=torch.float32)
    ended = torch.tensor(terminated)
    return Transitions(obs, torch.zeros(len(z), 3), torch.zeros(len(z)), after, ended, torch.zeros_like(ended))


@pytest.mark.parametrize("seed", range(10))
def test_a_rule_is_held_against_the_recorded_terminals(seed: int) -> None:
    draw = numpy_stream(seed, "rule")
    z = draw.uniform(0.5, 1.5, 1000)
    true = ~(z > 0.7)
    check_rule(hopper, rows_of(z, true), name="hopper", source="x")
    one = true.copy()
    one[np.flatnonzero(true)[0]] = False
    check_rule(hopper, rows_of(z, one), name="hopper", source="x")  # one of some two hundred
    none = np.zeros_like(true)
    with pytest.raises(
        SettingError, match=rf"1000 rows 0 are recorded .* calls {true.sum()} others terminal and misses 0"
    ):
        check_rule(hopper, rows_of(z, none), name="hopper", source="x")
    with pytest.raises(SettingError, match=rf"calls 0 others terminal and misses {true.sum()}"):
        check_rule(never, rows_of(z, true), name="never", source="x")
    shifted = np.roll(true, 1)
    with pytest.raises(SettingError, match="contradicts x"):
        check_rule(hopper, rows_of(z, shifted), name="hopper", source="x")
    unhealthy = termination_rule("Hopper-v5", {"terminate_when_unhealthy": False})
    check_rule(unhealthy, rows_of(z, none), name="hopper", source="x")


def test_a_rule_of_other_observations_and_unrecorded_successors() -> None:
    rows = rows_of(np.array([1.2, 1.2]), np.array([False, True]))
    check_rule(hopper, rows, name="hopper", source="x")  # the last successor was not recorded: it says nothing
    with pytest.raises(SettingError, match="does not fit observations of 1 numbers"):
        check_rule(
            hopper,
            rows.__class__(
                rows.obs[:, :1],
                *(getattr(rows, n) for n in ("action", "reward")),
                rows.next_obs[:, :1],
                rows.terminated,
                rows.truncated,
            ),
            name="hopper",
            source="x",
        )
