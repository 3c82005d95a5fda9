"""Parts of observations by key, ids with modules, and bounds. Units under test: ``registered_env``, ``data.offline.layout``."""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from worldrl.core.errors import SettingError
from worldrl.data.offline.layout import from_json, layout_of, places, to_json
from worldrl.data.offline.trajectories import DatasetInfo
from worldrl.rollout.vector.episodes import dataset_environment, environment_info, make_environment

ID = "WorldrlTestParts-v0"


def box(size: int, low: float = -9) -> spaces.Box:
    return spaces.Box(low, 9, (size,), np.float32)


class Parts(gymnasium.Env[Any, Any]):
    """An observation of any space; every number of it is its own."""

    def __init__(self, space: Any, action: Any = None) -> None:
        self.observation_space = space
        self.action_space = action or spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return drawn(self.observation_space, 7), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def drawn(space: Any, seed: int, path: str = "") -> Any:
    """Values that depend on the path of keys alone, and not on their order."""
    if isinstance(space, spaces.Dict):
        return {key: drawn(part, seed, f"{path}/{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(drawn(part, seed, f"{path}/{index}") for index, part in enumerate(space.spaces))
    return np.random.default_rng([seed, *path.encode()]).uniform(-1, 1, space.shape).astype(np.float32)


def random_space(draw: np.random.Generator, depth: int = 0) -> Any:
    """A nested description: a size, a list (a Tuple), or a mapping (a Dict)."""
    kind = draw.integers(0, 3) if depth else 2
    if kind == 0 or depth == 3:
        return int(draw.integers(1, 4))
    inner = [random_space(draw, depth + 1) for _ in range(draw.integers(1, 4))]
    return inner if kind == 1 else {f"k{key}": part for key, part in zip(draw.permutation(9), inner, strict=False)}


def built(plan: Any, draw: np.random.Generator | None) -> Any:
    """The space of a description: sorted, or with its keys in an order of its own."""
    if isinstance(plan, int):
        return box(plan)
    if isinstance(plan, list):
        return spaces.Tuple([built(part, draw) for part in plan])
    keys = sorted(plan) if draw is None else list(draw.permutation(sorted(plan)))
    return spaces.Dict(OrderedDict((str(key), built(plan[key], draw)) for key in keys))


@pytest.fixture
def register() -> Iterator[Any]:
    def make(space: Any, action: Any = None, limit: int | None = 5) -> None:
        gymnasium.registry.pop(ID, None)
        gymnasium.register(ID, entry_point=Parts, kwargs={"space": space, "action": action}, max_episode_steps=limit)

    yield make
    gymnasium.registry.pop(ID, None)


def info(**over: Any) -> DatasetInfo:
    return replace(DatasetInfo("data.hdf5", (-1.0,), (1.0,), env_id=ID), **over)


@pytest.mark.parametrize("seed", range(30))
def test_parts_are_matched_by_key_whatever_their_order(register: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    plan = random_space(draw)
    recorded, played = built(plan, None), built(plan, draw)
    expected = spaces.flatten(recorded, drawn(recorded, 7))
    register(played)
    env = dataset_environment(info(obs_parts=from_json(to_json(layout_of(recorded) or ()))))
    assert env.observation_space.shape == expected.shape
    np.testing.assert_array_equal(env.reset(seed=0)[0], expected)
    assert environment_info(env, "again").obs_parts == layout_of(recorded)
    own = environment_info(make_environment(ID), "own")
    assert own.obs_parts == layout_of(played)  # what make-dataset writes beside its flat rows


@pytest.mark.parametrize(
    "other",
    [
        spaces.Dict({"goal": box(2), "place": box(2)}),
        spaces.Dict({"goal": box(3), "position": box(1)}),
        spaces.Dict({"goal": box(2), "position": box(2), "extra": box(1)}),
        spaces.Dict({"goal": box(2), "position": spaces.Dict({"x": box(2)})}),
        spaces.Tuple([box(2), box(2)]),
        box(4),
    ],
)
def test_other_parts_are_refused_with_both(register: Any, other: Any) -> None:
    register(other)
    parts = layout_of(spaces.Dict({"goal": box(2), "position": box(2)}))
    with pytest.raises(SettingError, match=r"(?s)observations of .*the parts|without keys") as found:
        dataset_environment(info(obs_parts=parts))
    assert "goal (2), position (2)" in str(found.value)


def test_rows_without_keys_need_the_order_where_it_is_not_the_sorted_one(register: Any) -> None:
    register(spaces.Dict({"goal": box(2), "position": box(1)}))
    assert dataset_environment(info()).observation_space.shape == (3,)
    mixed = spaces.Dict(OrderedDict(position=box(1), goal=box(2)))
    register(mixed)
    with pytest.raises(SettingError, match=r"Give obs_keys=\[position,goal\] in the order of"):
        dataset_environment(info())
    flat = drawn(mixed, 7)
    env = dataset_environment(info(obs_keys=("goal", "position")))
    np.testing.assert_array_equal(env.reset()[0], np.concatenate([flat["goal"], flat["position"]]))
    with pytest.raises(SettingError, match="must name each of position, goal once"):
        dataset_environment(info(obs_keys=("goal",)))


def test_equal_paths_twice_are_no_match() -> None:
    assert places(((("a",), 1), (("a",), 1)), ((("a",), 1), (("a",), 1))) is None


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (spaces.Box(-3, 3, (2,), np.int64), "whole numbers as actions"),
        (spaces.Box(np.array([-1, 0], np.float32), np.array([1, 0], np.float32)), "same low and high, 0, for number 1"),
        (spaces.Box(0, np.inf, (2,), np.float32), "unbounded"),
        (spaces.Discrete(3), "only vectors"),
    ],
)
def test_actions_that_cannot_be_chosen_are_refused(register: Any, action: Any, message: str) -> None:
    register(box(2), action)
    with pytest.raises(SettingError, match=message):
        make_environment(ID)


def test_the_module_that_registers_an_id_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, register: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "import gymnasium\n"
        "gymnasium.register('WorldrlTestOwn-v0', entry_point='gymnasium.envs.classic_control.pendulum:PendulumEnv', max_episode_steps=3)\n"
    )
    (tmp_path / "worldrl_test_own.py").write_text(text)
    (tmp_path / "worldrl_test_needs.py").write_text("import no_such_package_here")
    (tmp_path / "worldrl_test_broken.py").write_text("1 / 0")
    cases = {
        "WorldrlTestOwn-v0": r"is not registered; give env=MODULE:WorldrlTestOwn-v0 .*episodes=0",
        "AntMaze_UMaze-v5": r"^env: 'AntMaze_UMaze-v5' is not registered; give env=MODULE:",
        "worldrl_test_no:X-v0": "names the module 'worldrl_test_no', which is not found",
        "worldrl_test_needs:X-v0": "cannot be imported: No module named 'no_such_package_here'",
        "worldrl_test_broken:X-v0": "cannot be imported: ZeroDivisionError",
        "worldrl_test_own:Other-v0": "is not registered by the module 'worldrl_test_own'",
    }
    for env_id, message in cases.items():
        with pytest.raises(SettingError, match=message) as found:
            make_environment(env_id)
        assert "extra" not in str(found.value)
    try:
        assert make_environment("worldrl_test_own:WorldrlTestOwn-v0").spec is not None
    finally:
        gymnasium.registry.pop("WorldrlTestOwn-v0", None)
        sys.modules.pop("worldrl_test_own", None)
    register(box(2), limit=None)
    with pytest.raises(SettingError, match=r"has no time limit.*give max_episode_steps"):
        make_environment(ID)
    assert make_environment(ID, max_episode_steps=4).spec is not None
