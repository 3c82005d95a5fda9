"""The bimanual suite's scripted experts: they solve every task, also on a lowered table."""

import numpy as np
import pytest

import worldrl_envs
from worldrl_envs.behaviours import make_expert

TASKS = worldrl_envs.task_names("bimanual")


def solve(env, task, index=0, seed=11, start="index", **options):
    """Run the expert; the last info."""
    expert = make_expert(task, generator=np.random.default_rng(index), **options)
    env.reset(seed=seed, options={start: index})
    expert.reset(env)
    while True:
        _, _, terminated, truncated, info = env.step(expert.act(env))
        if terminated or truncated:
            return info


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("index", [0, 1])
def test_expert_solves(task, index, make):
    env = make(task, obs="state")
    info = solve(env, task, index)
    assert info["is_success"]
    assert info["step"] < 0.75 * env.spec.max_episode_steps


def test_expert_solves_on_a_lowered_table(make):
    assert solve(make("BimanualStackCubes", obs="state", domain="randomised"), "BimanualStackCubes")["is_success"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_cube_dropped_into_a_lowered_bin_is_not_thrown(number, make):
    # A hand that rises with its fingers still on the cube makes it tumble into the other cube's place.
    env = make("BimanualPutCubesInBin", obs="state", domain="randomised")
    info = solve(env, "BimanualPutCubesInBin", number, seed=number, start="init_id")
    sim = env.unwrapped.sim
    assert info["is_success"]
    assert min(sim.axis(name)[2] for name in ("red_cube", "blue_cube")) > 0.99
    assert info["step"] < 0.5 * env.spec.max_episode_steps


def test_noise_and_offsets_vary_the_data(make):
    env = make("BimanualOpenDrawer", obs="state")
    lengths = {solve(env, "BimanualOpenDrawer", seed=s, noise=0.1, goal_offset=0.01)["step"] for s in range(3)}
    assert len(lengths) > 1
