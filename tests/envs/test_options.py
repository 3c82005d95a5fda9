"""Unit under test: ``options.py``, through `reset` and `set_state` of all tasks; what is refused changes nothing."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest

import worldrl_envs
from worldrl_envs.errors import OptionError, UnknownNameError

TASKS = [*worldrl_envs.task_names(), *worldrl_envs.task_names("bimanual")]
NAN = float("nan")
WRONG_NUMBERS = [
    -1,
    3.7,
    3.0,
    NAN,
    "a",
    "3",
    None,
    [1],
    (1,),
    True,
    np.bool_(True),
    np.float32(1),
    np.array([1]),
    {},
    1j,
    b"1",
]
WRONG_TEXTS = [5, None, "", "x" * 257, "x" * 10000, "🦾", "lift\nit", "दाल", ["lift it"], b"lift it", NAN, {}]
FAULTS = [
    *({name: value} for name in ("index", "init_id", "paraphrase") for value in WRONG_NUMBERS),
    *({"instruction": value} for value in WRONG_TEXTS),
    *({"state": value} for value in ({}, None, 5, [], "state", {"task": "PickRedCube"})),
    {"init_id": 50},
    {"paraphrase": 10**6},
    {"init_id": 10**30},
    {"index": 1, "init_id": 1},
    {"instruction": "lift it", "paraphrase": 0},
    [],
    "index",
    5,
    [("index", 1)],
]


def make(task, **options):
    return gymnasium.make(worldrl_envs.env_id(task), obs="state", disable_env_checker=True, **options).unwrapped


@pytest.fixture(scope="module", params=TASKS)
def env(request):
    made = make(request.param)
    made.reset(seed=1)
    yield made
    made.close()


def same(a, b):
    return all(np.array_equal(a[name], b[name]) if name != "rng" else a[name] == b[name] for name in a)


def test_every_wrong_option_is_refused_by_name_and_changes_nothing(env):
    before, step = env.get_state(), env.np_random.bit_generator.state
    for options in FAULTS:
        with pytest.raises(OptionError) as error:
            env.reset(seed=0, options=options)
        names = list(options) if isinstance(options, dict) else ["options"]
        assert any(name in str(error.value) for name in names), options
        assert len(str(error.value)) < 250
        assert same(env.get_state(), before)
    assert env.np_random.bit_generator.state == step


def test_unknown_options_are_refused_with_the_nearest(env):
    for key, nearest in (("indx", "index"), ("init", "init_id"), ("instructions", "instruction"), ("State", "state")):
        with pytest.raises(UnknownNameError, match=f"nearest is '{nearest}'"):
            env.reset(seed=0, options={key: 1})
    with pytest.raises(UnknownNameError, match="valid: "):
        env.reset(seed=0, options={3: 1})


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True, [1], NAN])
def test_wrong_seeds_are_refused(env, seed):
    before = env.get_state()
    with pytest.raises(OptionError, match="seed: must be an integer of at least 0"):
        env.reset(seed=seed)
    assert same(env.get_state(), before)


@pytest.mark.parametrize("number", [0, 3, np.int64(3), np.uint8(3)])
@pytest.mark.parametrize("name", ["index", "init_id", "paraphrase"])
def test_right_options_are_taken_in_any_integer_type(name, number):
    env, plain = make("PickRedCube"), make("PickRedCube")
    a, info = env.reset(seed=0, options={name: number})
    b, _ = plain.reset(seed=0, options={name: int(number)})
    np.testing.assert_array_equal(a, b)
    assert type(info["init_id"]) is int
    assert env.reset(seed=0, options={"instruction": "x" * 256})[1]["instruction"] == "x" * 256


def damaged(state):
    """Neighbours of a good state, each with one fault, and the part that the message names."""
    for name, value in state.items():
        yield {key: other for key, other in state.items() if key != name}, name
        yield {**state, name: None}, name
        if isinstance(value, np.ndarray):
            yield {**state, name: value[:-1]}, name
            yield {**state, name: value * NAN}, name
            yield {**state, name: value.astype(np.float16)}, name
            yield {**state, name: value.tolist()}, name
        elif isinstance(value, int):
            yield {**state, name: -2}, name
            yield {**state, name: 0.5}, name
            yield {**state, name: True}, name
        elif isinstance(value, str):
            yield {**state, name: ""}, name
            yield {**state, name: "é"}, name
    yield {**state, "stage": 99}, "stage"
    yield {**state, "rng": {"bit_generator": "MT19937"}}, "rng"
    yield {**state, "rng": {**state["rng"], "state": {"state": -1, "inc": 3}}}, "rng"
    yield {**state, "extra": 1}, "extra"


def test_every_damaged_state_is_refused_by_part_and_changes_nothing(env):
    before = env.get_state()
    for state, part in damaged(copy.deepcopy(before)):
        for put in (env.set_state, lambda state: env.reset(seed=5, options={"state": state})):
            with pytest.raises((OptionError, UnknownNameError), match=part):
                put(state)
            assert same(env.get_state(), before)
    env.set_state(pickle.loads(pickle.dumps(before)))
    assert same(env.get_state(), before)


def test_the_state_of_another_domain_is_refused():
    clean, other = (make("BimanualLiftPot", domain=domain) for domain in ("clean", "randomised"))
    clean.reset(seed=0), other.reset(seed=0)
    with pytest.raises(OptionError, match="domain"):
        other.set_state(clean.get_state())


@pytest.mark.parametrize("size", [7, 513, 0, -1, 64.0, "64", None, True])
def test_wrong_image_sizes_are_refused(size):
    with pytest.raises(OptionError, match=r"image_size: must be an integer in 8\.\.512"):
        make("PickRedCube", image_size=size)
