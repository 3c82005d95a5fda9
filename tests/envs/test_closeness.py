"""How far a scene is from its goal: less on the expert's way, nothing where things belong, and metres in between."""

import numpy as np
import pytest

import worldrl_envs
from worldrl_envs.closeness import goal_distance
from worldrl_envs.experts import ScriptedExpert


def put(env, name, position):
    sim = env.unwrapped.sim
    placement = sim.placement()
    at = sim.model.joint(name).qposadr[0]
    placement.qpos[at : at + 3] = position
    sim.restore(placement)


def missing(env):
    return goal_distance(env.unwrapped.sim, env.unwrapped.task)


@pytest.mark.parametrize("task", worldrl_envs.task_names())
def test_an_expert_comes_from_far_to_next_to_nothing(task, make):
    env = make(task, obs="state")
    env.reset(seed=11, options={"index": 0})
    expert, terminated = ScriptedExpert(task, generator=np.random.default_rng(0)), False
    expert.reset(env)
    first = missing(env)
    while not terminated:
        _, _, terminated, _, _ = env.step(expert.act(env))
    assert first > 0.05
    assert missing(env) < 0.02  # a held object's centre is beside the hand's


def test_a_pick_misses_by_the_way_to_the_object_and_its_height(make):
    env = make("PickRedCube", obs="state")
    env.reset(seed=0)
    sim = env.unwrapped.sim
    apart = np.linalg.norm(sim.position("red_cube") - sim.tcp)
    assert missing(env) == pytest.approx(apart + 0.08, abs=2e-3)
    put(env, "red_cube", sim.tcp)  # home is higher than what counts as lifted
    assert missing(env) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("task", "where", "offset", "expected"),
    [
        ("PlaceCubeInBin", "bin", (0.0, 0.0, 0.03), 0.0),
        ("PlaceCubeInBin", "bin", (0.104, 0.0, 0.03), 0.03),
        ("PlaceCubeInBin", "bin", (0.104, 0.0, 0.09), 0.05),
        ("PushCubeToTarget", "zone", (0.0, 0.054, 0.03), 0.02),
    ],
)
def test_what_is_to_be_placed_misses_by_the_way_to_its_place_alone(make, task, where, offset, expected):
    env = make(task, obs="state")
    env.reset(seed=0)
    sim = env.unwrapped.sim
    frame = sim.data.body(where).xmat.reshape(3, 3)
    put(env, "red_cube", sim.position(where) + frame @ np.array(offset))
    assert missing(env) == pytest.approx(expected, abs=1e-6)
