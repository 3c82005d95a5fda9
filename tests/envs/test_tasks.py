"""Experts solve the tasks; predicates refuse what only seems a success."""

import numpy as np
import pytest

import worldrl_envs
from worldrl_envs import predicates
from worldrl_envs.experts import RandomReach, ScriptedExpert

TASKS = worldrl_envs.task_names()


def run(env, agent, index=0, steps=400, seed=11):
    """One episode; the last info."""
    _, info = env.reset(seed=seed, options={"index": index})
    agent.reset(env)
    for _ in range(steps):
        _, _, terminated, truncated, info = env.step(agent.act(env))
        if terminated or truncated:
            break
    return info


def put(env, name, position):
    """Teleport a free object; it keeps no velocity."""
    sim = env.unwrapped.sim
    placement = sim.placement()
    at = sim.model.joint(name).qposadr[0]
    placement.qpos[at : at + 3] = position
    sim.restore(placement)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("index", [0, 1])
def test_expert_solves(task, index, make):
    env = make(task, obs="state")
    info = run(env, ScriptedExpert(task, generator=np.random.default_rng(index)), index)
    assert info["is_success"]
    assert info["step"] < 0.75 * env.spec.max_episode_steps


@pytest.mark.parametrize("task", TASKS)
def test_stages_are_met_in_order_and_reward_marks_success(task, make):
    env = make(task, obs="state")
    env.reset(seed=11, options={"index": 0})
    expert, stages, rewards = ScriptedExpert(task, generator=np.random.default_rng(0)), [0], []
    expert.reset(env)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(expert.act(env))
        stages.append(info["stage"])
        rewards.append(reward)
    assert np.all(np.diff(stages) >= 0)
    assert stages[-1] == len(env.unwrapped.task.stages)
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]


def test_wrong_object_is_no_success(make):
    env = make("PickGreenCylinder", obs="state")
    assert not run(env, ScriptedExpert("PickRedCube", generator=np.random.default_rng(0)))["is_success"]


def test_a_flying_object_is_not_lifted(make):
    env = make(obs="state")
    env.reset(seed=0)
    put(env, "red_cube", [0.5, 0.1, 0.2])
    assert env.unwrapped.sim.height("red_cube") > predicates.LIFT_HEIGHT
    assert not predicates.lifted("red_cube")(env.unwrapped.sim)


def test_a_falling_object_is_not_yet_in_the_bin(make):
    env = make("PlaceCubeInBin", obs="state")
    env.reset(seed=0)
    sim = env.unwrapped.sim
    put(env, "red_cube", sim.position("bin") + np.array([0, 0, 0.12]))
    seen, hold = [], np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    for _ in range(20):
        env.step(hold)
        seen.append(
            (predicates.inside(sim, "red_cube", "bin"), sim.speed("red_cube"), predicates.in_bin("red_cube")(sim))
        )
    assert not any(solved for _, speed, solved in seen if speed > predicates.REST_SPEED)
    assert seen[-1][2]


def test_blue_before_red_does_not_count(make):
    env = make("PlaceRedThenBlueInBin", obs="state")
    env.reset(seed=0)
    floor = env.unwrapped.sim.position("bin") + np.array([0, 0, 0.032])
    hold = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    put(env, "blue_cube", floor + np.array([0.034, 0, 0]))
    env.step(hold)
    put(env, "red_cube", floor - np.array([0.034, 0, 0]))
    for _ in range(10):
        info = env.step(hold)[4]
    assert info["stage"] == 0
    assert not info["is_success"]


def test_noise_and_offsets_vary_the_data(make):
    env = make(obs="state")
    lengths = set()
    for index in range(4):
        expert = ScriptedExpert("PickRedCube", generator=np.random.default_rng(index), noise=0.2, goal_offset=0.01)
        lengths.add(run(env, expert, index=0)["step"])
    assert len(lengths) > 1


def test_random_reach_touches_things(make):
    env = make(obs="state", max_episode_steps=150)
    agent = RandomReach(generator=np.random.default_rng(0))
    env.reset(seed=0)
    agent.reset(env)
    assert any(env.step(agent.act(env))[4]["contact"] for _ in range(150))
