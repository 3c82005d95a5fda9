"""Units under test: ``rollout/imagined_checks.py`` and ``rollout/spaces.py``, through the imagined environment.

Whatever is refused changes nothing: not the counters, not the state, not the draws that follow.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from worldrl.core.embodiment import Embodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.spaces import command_bounds


@pytest.fixture
def make_env(scripted_world, make_record):
    def make(num_envs=3, *, world=scripted_world, records=None, **over):
        store = ResetStore(records or [make_record(grey) for grey in (10, 20, 30)])
        return WorldModelVecEnv(world, store, SuccessRule(0.6, 2), num_envs=num_envs, **({"horizon": 12} | over))

    return make


NAN = float("nan")
SETTINGS = {
    "p_keyframe": [2, -1, NAN, -1e-9, float("inf"), "a", None, True],
    "horizon": [0, -5, 2.5, "12", None, True, {"PickRedCube": 0}, {"PickRedCube": 1.5}, {}],
    "num_envs": [0, -1, 2.0, "2", True],
    "group_size": [0, -1, 2, 1.0],
    "seed": [-1, 1.5, None, "a"],
    "autoreset_mode": ["SameStep", AutoresetMode.SAME_STEP, "same", None, 3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SETTINGS.items() for value in values])
def test_impossible_settings_are_refused_by_name(make_env, name, value):
    with pytest.raises(SettingError, match=name):
        make_env(**({"num_envs": 3} | {name: value}))


def test_autoreset_modes_may_be_named(make_env):
    modes = [make_env(autoreset_mode=mode).metadata["autoreset_mode"] for mode in ("NextStep", "Disabled")]
    assert modes == [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


IMAGE = np.zeros((16, 16, 3), np.uint8)
FAULTS = {
    "command": [
        np.zeros(6, np.float32),
        np.zeros(7),
        np.full(7, NAN, np.float32),
        np.full(7, 9, np.float32),
        [0.0] * 7,
        None,
    ],
    "reference": [IMAGE.astype(float), IMAGE[:8], IMAGE[..., 0], None],
    "memory": [IMAGE, np.zeros((3, 16, 16, 3), np.uint8), np.zeros((2, 16, 16, 3), np.float32), None],
    "step": [-1, 1.5, "1", None, True],
    "instruction": ["", "x" * 300, 5, None, "取"],
    "task": [3, None],
    "source": [None],
    "memory_action": [np.zeros((3, 7), np.float32), np.zeros((4, 7)), np.full((4, 7), NAN, np.float32)],
    "reference_command": [np.zeros(6, np.float32), np.full(7, NAN, np.float32)],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FAULTS.items() for value in values])
def test_a_record_that_does_not_fit_is_refused_by_field_and_changes_nothing(
    make_env, make_record, same_tree, name, value
):
    env, other = make_env(), make_env()
    env.reset(seed=0), other.reset(seed=0)
    before = env.get_state()
    records = [make_record(1), replace(make_record(2), **{name: value}), make_record(3)]
    for seed in (None, 5):
        with pytest.raises(SettingError, match=rf"records\[1\]\.{name}"):
            env.reset(seed=seed, options={"records": records})
    same_tree(env.get_state(), before)
    same_tree(env.reset(), other.reset())


@pytest.mark.parametrize(
    "options",
    [
        {"records": []},
        {"records": None, "recrods": 1},
        {"records": "abc"},
        {"records": [1, 2, 3]},
        {"records": {}},
        {"reset_mask": [1, 0, 1]},
        {"reset_mask": np.array([True])},
        {3: 4},
        [("records", [])],
        "records",
    ],
)
def test_other_options_are_refused_and_change_nothing(make_env, same_tree, options):
    env = make_env()
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(SettingError, match=r"record|reset"):
        env.reset(options=options)
    same_tree(env.get_state(), before)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True, [1, 2, 3]])
def test_other_seeds_are_refused(make_env, seed):
    with pytest.raises(SettingError, match="seed"):
        make_env().reset(seed=seed)


def test_records_of_a_task_without_horizon_are_refused(make_env, make_record):
    env = make_env(horizon={"PickRedCube": 12})
    records = [replace(make_record(n), task="PickRedCub") for n in range(3)]
    with pytest.raises(SettingError, match="'PickRedCub' has no horizon; did you mean 'PickRedCube'"):
        env.reset(options={"records": records})


def damaged_states(good):
    """Neighbours of a good state, each with one fault, and the part that is named."""
    for key in good:
        yield {name: value for name, value in good.items() if name != key}, key
    yield {**good, "extra": 1}, "extra"
    yield None, "dictionary"
    yield {**good, "seed": -1}, "seed"
    yield {**good, "records": good["records"][:2]}, "record"
    yield {**good, "records": [{}] * 3}, "records"
    yield {**good, "records": [{**good["records"][0], "step": -1}] * 3}, "step"
    for name, value in good["counters"].items():
        yield {**good, "counters": {k: v for k, v in good["counters"].items() if k != name}}, name
        yield {**good, "counters": {**good["counters"], name: value[:2]}}, name
        yield {**good, "counters": {**good["counters"], name: value.astype(np.float64)}}, name
        if value.dtype.kind == "i":
            yield {**good, "counters": {**good["counters"], name: value - 99}}, name
    yield {**good, "counters": {**good["counters"], "phase": np.full(3, 4)}}, "phase"
    yield {**good, "counters": {**good["counters"], "buffer": good["counters"]["buffer"] * NAN}}, "buffer"
    for part in ("recent", "world"):
        for name, value in good[part].items():
            yield {**good, part: {k: v for k, v in good[part].items() if k != name}}, name
            yield {**good, part: {**good[part], name: value[:2]}}, name
            yield {**good, part: {**good[part], name: value * NAN}}, name
            yield {**good, part: {**good[part], name: value.long()}}, name
            yield {**good, part: {**good[part], name: value.numpy()}}, name


@pytest.mark.parametrize("world", ["scripted", "video"])
def test_a_state_that_does_not_fit_is_refused_by_part_and_changes_nothing(make_env, same_tree, world, world_model):
    env = make_env(world=world_model) if world == "video" else make_env()
    env.reset(seed=0)
    env.step(np.zeros((3, 7), np.float32))
    good = env.get_state()
    faults = list(damaged_states(copy.deepcopy(good)))
    assert len(faults) > 30
    for state, part in faults:
        with pytest.raises(SettingError, match=part):
            env.set_state(state)
        same_tree(env.get_state(), good)
    env.set_state(good)
    same_tree(env.get_state(), good)


# -- spaces --------------------------------------------------------------------------------------------------


def test_bounds_of_the_command_are_the_robots(make_env, make_record):
    low, high = make_env().single_observation_space["command"].low, make_env().single_observation_space["command"].high
    robot = make_env().world_model.embodiment
    assert low[:3].tolist() == np.float32(robot.workspace_low).tolist()
    assert high[:3].tolist() == np.float32(robot.workspace_high).tolist()
    assert (low[6], high[6]) == (-1, 1)


def test_bounds_hold_joints_in_degrees_and_widen_to_where_rollouts_start():
    arm = JointEmbodiment(("pan.pos", "gripper.pos"), (-100.0, 0.0), (100.0, 60.0), (300.0, 300.0), 30.0)
    low, high = command_bounds(arm, np.array([[12, 30], [101, 5]], np.float32))
    assert (low.tolist(), high.tolist()) == ([-100, 0], [101, 60])


@pytest.mark.parametrize("seed", range(5))
def test_every_integrated_command_lies_within_the_bounds(seed):
    from worldrl.core.embodiment import integrate_commands

    robot = Embodiment(0.05, 0.5, (-0.3, -0.2, 0.01), (0.4, 0.3, 0.5), 0.7, 20.0)
    draws = np.random.default_rng(seed)
    start = np.concatenate([draws.uniform(-0.1, 0.1, (64, 6)), np.ones((64, 1))], axis=1).astype(np.float32)
    low, high = command_bounds(robot, start)
    action = torch.from_numpy(draws.choice([-1.0, 1.0, 0.3], (64, 40, 7)).astype(np.float32))
    reached = integrate_commands(robot, torch.from_numpy(start), action).numpy()
    assert ((reached >= low) & (reached <= high)).all()


def test_instructions_in_any_writing_lie_in_the_space(make_env, make_record):
    long = "नीला घन उठाओ " * 30
    env = make_env(records=[replace(make_record(), instruction=text) for text in ("把红色方块拿起来", long)])
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    assert "lift it" in env.single_observation_space["instruction"]


def test_a_start_that_is_not_finite_is_refused(make_env, make_record):
    with pytest.raises(SettingError, match="command is not finite"):
        make_env(records=[replace(make_record(), command=np.full(7, NAN, np.float32))])
