import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import worldrl_envs
from worldrl_envs.errors import ActionError, OptionError, UnknownNameError

TASKS = worldrl_envs.task_names()
HOLD = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


def same(a, b):
    """Exact equality of observations, also nested."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_checker(task, make):
    check_env(make(task, render_mode="rgb_array", cameras=("scene", "wrist")).unwrapped)


def test_gymnasium_checker_on_state(make):
    check_env(make(obs="state", render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("task", TASKS)
def test_two_copies_agree(task, make, actions):
    first, second = make(task), make(task)
    assert same(first.reset(seed=3), second.reset(seed=3))
    for action in actions[:10]:
        assert same(first.step(action)[0], second.step(action)[0])


@pytest.mark.parametrize("task", TASKS)
def test_restored_state_continues_with_the_same_bits(task, make, actions):
    env, other = make(task, obs="state").unwrapped, make(task, obs="state").unwrapped
    env.reset(seed=1)
    for action in actions[:20]:
        env.step(action)
    state = env.get_state()
    expected = [env.step(action)[:2] for action in actions[20:]]
    other.reset(seed=9)
    other.set_state(state)
    for action, (obs, reward) in zip(actions[20:], expected, strict=True):
        got = other.step(action)
        assert same(got[0], obs)
        assert got[1] == reward
    env.reset(options={"state": state})
    assert same(env.step(actions[20])[0], expected[0][0])


@pytest.mark.parametrize("task", TASKS)
def test_stored_states_are_fifty_and_unsolved(task, make):
    env = make(task, obs="state")
    for init_id in (0, 49):
        obs, info = env.reset(options={"init_id": init_id})
        assert info["init_id"] == init_id
        assert not info["is_success"]
        assert same(env.reset(options={"init_id": init_id})[0], obs)
    with pytest.raises(OptionError, match=r"0\.\.49, got 50"):
        env.reset(options={"init_id": 50})


def test_start_depends_on_task_index_and_seed_alone(make, actions):
    env, other = make(obs="state", instruction="paraphrase"), make(obs="state", instruction="paraphrase")
    in_order = [env.reset(seed=5, options={"index": index}) for index in range(6)]
    other.reset(seed=1)
    other.step(actions[0])
    backwards = [other.reset(seed=5, options={"index": index}) for index in reversed(range(6))]
    for a, b in zip(in_order, reversed(backwards), strict=True):
        assert same(a[0], b[0])
        assert a[1]["instruction"] == b[1]["instruction"]
    assert not same(in_order[0][0], in_order[1][0])
    assert not same(in_order[0][0], env.reset(seed=6, options={"index": 0})[0])


def test_pickle_keeps_arguments(make):
    env = make(image_size=32, cameras=("wrist",), style="dim").unwrapped
    copy = pickle.loads(pickle.dumps(env))
    assert same(copy.reset(seed=0)[0], env.reset(seed=0)[0])
    copy.close()


def test_shapes(make):
    env = make(image_size=48, cameras=("scene", "wrist"), render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    assert obs["image"].shape == obs["wrist_image"].shape == (48, 48, 3)
    assert obs["state"].shape == (8,)
    assert obs["command"].shape == (7,)
    assert env.render().shape == (384, 384, 3)


@pytest.mark.parametrize("bad", [np.full(7, np.nan), np.full(7, 1e30), np.zeros(6), np.zeros(7, int), None])
def test_bad_actions_leave_the_state_untouched(bad, make, actions):
    env = make(obs="state").unwrapped
    env.reset(seed=0)
    env.step(actions[0])
    before = env.get_state()
    with pytest.raises(ActionError):
        env.step(bad)
    assert same(env.get_state(), before)


def test_command_is_the_integrated_action(make, actions):
    from worldrl_envs.control import home_command, next_command

    env, command = make(), home_command()
    assert same(env.reset(seed=0)[0]["command"], command)
    for action in actions:
        command = next_command(command, action)
        assert same(env.step(action)[0]["command"], command)


def test_tool_follows_the_command_in_free_space(make):
    env = make(obs="state").unwrapped
    env.reset(seed=0)
    generator, errors = np.random.default_rng(0), []
    for step in range(60):
        if step % 10 == 0:
            direction = np.array([*generator.uniform(-1, 1, 2), 0.2, *generator.uniform(-0.3, 0.3, 3), -1])
        env.step(direction.astype(np.float32))
        errors.append(np.linalg.norm(env.sim.tcp - env.command[:3]))
    assert np.mean(errors) < 0.004
    for _ in range(10):
        env.step(HOLD)
    assert np.linalg.norm(env.sim.tcp - env.command[:3]) < 0.0005


def test_truncation_is_the_time_limit(make):
    env = make(obs="state", max_episode_steps=5)
    env.reset(seed=0)
    ends = [env.step(HOLD)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"init_idx": 3}, UnknownNameError, "nearest is 'init_id'"),
        ({"index": 3}, OptionError, "needs a seed"),
        ({"index": 3, "init_id": 3}, OptionError, "at most one"),
        ({"paraphrase": 99}, OptionError, "got 99"),
    ],
)
def test_wrong_options(options, error, match, make):
    with pytest.raises(error, match=match):
        make(obs="state").reset(options=options)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"task": "PickRed"}, "nearest is 'PickRedCube'"),
        ({"obs": "pixel"}, "nearest is 'pixels'"),
        ({"cameras": ("scenes",)}, "nearest is 'scene'"),
        ({"style": "checkers"}, "nearest is 'checker'"),
        ({"instruction": "heldout"}, "nearest is 'held_out'"),
        ({"image_size": 4}, r"image_size: must be an integer in 8\.\.512"),
    ],
)
def test_wrong_arguments(kwargs, match):
    from worldrl_envs.tabletop import TabletopEnv

    with pytest.raises(ValueError, match=match):
        TabletopEnv(**{"task": "PickRedCube", **kwargs})


def test_instructions(make):
    spec = worldrl_envs.get_task("PickRedCube")
    assert make().reset(seed=0)[1]["instruction"] == spec.instruction
    drawn = {make(instruction="paraphrase").reset(seed=s)[0]["instruction"] for s in range(6)}
    assert drawn <= set(spec.phrases.train)
    assert len(drawn) > 1
    assert make(instruction="held_out").reset(seed=0)[1]["instruction"] in spec.phrases.held_out
    assert make().reset(options={"paraphrase": 2})[1]["instruction"] == spec.paraphrases[2]
    assert make().reset(options={"instruction": "wave"})[1]["instruction"] == "wave"


def test_step_before_reset_is_refused():
    from worldrl_envs.tabletop import TabletopEnv

    with pytest.raises(gymnasium.error.ResetNeeded):
        TabletopEnv("OpenDrawer", obs="state").step(HOLD)


def test_a_state_of_another_task_is_refused(make):
    other = make("OpenDrawer", obs="state").unwrapped
    other.reset(seed=0)
    with pytest.raises(OptionError, match="OpenDrawer"):
        make(obs="state").unwrapped.set_state(other.get_state())
