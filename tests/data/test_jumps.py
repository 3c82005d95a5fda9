"""Limits and jumps on D4RL files. Units under test: ``resets``, ``jumps``, ``remarks``, ``actions``, through the reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.offline.loading import open_trajectories
from worldrl.data.offline.remarks import checks_of, remarks

h5py = pytest.importorskip("h5py")


def walk(episodes: int = 20, steps: int = 20, width: int = 2, seed: int = 0) -> dict[str, Any]:
    """Each episode starts far from where the last ended; a step moves by at most 0.1."""
    draw, rows = np.random.default_rng(seed), episodes * steps
    action = draw.uniform(-1, 1, (rows, width)).astype(np.float32)
    obs, after = np.zeros((rows, width), np.float32), np.zeros((rows, width), np.float32)
    for row in range(rows):
        obs[row] = draw.uniform(-50, 50, width) if row % steps == 0 else after[row - 1]
        after[row] = obs[row] + 0.1 * action[row]
    return {
        "observations": obs,
        "actions": action,
        "rewards": draw.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % steps == steps - 1,
        "true": after,
    }


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def call(columns: dict[str, Any], name: str = "walk.hdf5", **given: Any) -> Any:
        with h5py.File(tmp_path / name, "w") as file:
            for key, value in columns.items():
                if value is not None and key != "true":
                    file[key] = value
        return open_trajectories(str(tmp_path / name), **given)

    return call


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("where", ["late", "early", "following", "clean", "stored"])
def test_shifted_ends_are_counted_and_clean_ones_are_not(read: Any, seed: int, where: str) -> None:
    draw = np.random.default_rng(seed)
    steps = int(draw.integers(12, 40))
    made = walk(int(draw.integers(10, 40)), steps, int(draw.integers(1, 6)), seed)
    following = np.append(made["observations"][1:], made["observations"][-1:], axis=0)
    change: dict[str, dict[str, Any]] = {
        "late": {"timeouts": np.roll(made["timeouts"], 1)},
        "early": {"timeouts": np.roll(made["timeouts"], -1)},
        "following": {"next_observations": following},
        "clean": {},
        "stored": {"next_observations": made["true"]},
    }
    data = read(made | change[where])
    found = checks_of(data)
    if where in ("clean", "stored"):
        assert found == {}
        return
    bootstrapped = np.abs(data.next_obs - data.obs).max(axis=1)
    assert found["jumps"]["rows"] == pytest.approx((bootstrapped > 1).sum(), abs=2)  # the start may lie near the end
    assert found["jumps"]["where"] == where
    assert 0.1 < found["jumps"]["largest"] <= bootstrapped.max()
    assert found["jumps"]["median"] < 0.1
    assert "may lead across a reset. The largest step is" in remarks(data)[0]


def test_d4rls_antmaze_is_found(read: Any) -> None:
    """Time-outs beside the resets: the ant's place jumps while 27 other numbers move as ever."""
    draw, rows = np.random.default_rng(0), 6000
    obs = draw.normal(size=(rows, 29)).astype(np.float32)
    place = np.cumsum(draw.normal(size=(rows, 2)) * 0.05, axis=0)
    place -= np.repeat(place[::1000], 1000, axis=0) + draw.uniform(-3, 3, (6, 2)).repeat(1000, axis=0)
    obs[:, :2] = place
    made = walk(6, 1000) | {"observations": obs, "actions": draw.uniform(-1, 1, (rows, 8))}
    assert "jumps" not in checks_of(read(made))
    found = checks_of(read(made | {"timeouts": np.arange(rows) % 1000 == 998}))["jumps"]
    assert found["number"] in (0, 1)


def test_missing_marks_after_which_rows_begin_elsewhere_are_counted(read: Any) -> None:
    made = walk()
    data = read(made | {"timeouts": np.zeros(400, bool), "next_observations": made["true"]})
    assert checks_of(data)["jumps"] == {"rows": 0, "unmarked": 19, "where": None}
    assert "19 rows without a marked end" in remarks(data)[0]


@pytest.mark.parametrize("limit", [1, 15, 19])
def test_an_episode_beyond_the_limit_is_refused(read: Any, limit: int) -> None:
    made = walk()
    with pytest.raises(
        ArtefactError, match=rf"walk.hdf5: episode 0 has 20 steps, more than the limit of {limit} .*=20"
    ):
        read(made, max_episode_steps=limit)
    assert len(read(made, max_episode_steps=20)) == 380  # the advice works
    with pytest.raises(ArtefactError, match=r"episode 0 has 400 steps, more than the limit of 200"):
        read(made | {"timeouts": np.zeros(400, bool)}, env_id="Pendulum-v1")


def test_marks_and_limit_are_held_against_each_other(read: Any) -> None:
    made = walk()
    assert checks_of(read(made, max_episode_steps=20)) == {}
    data = read(made, max_episode_steps=30)
    assert checks_of(data)["early_timeouts"] == {"rows": 19, "of": 19, "limit": 30, "shortest": 20}
    assert "19 of 19 time-outs come before max_episode_steps=30" in remarks(data)[0]
    wrong = read(made | {"timeouts": None}, max_episode_steps=25)
    assert checks_of(wrong)["jumps"]["rows"] > 10


def test_equal_rewards_are_printed(read: Any) -> None:
    data = read(walk() | {"rewards": np.ones(400)})
    assert remarks(data) == [f"{data.info.source}: all 380 rewards are 1; they prefer no action to another"]


def test_actions_beyond_their_bounds_are_refused_clipped_or_given_bounds(read: Any) -> None:
    made = walk()
    wide = made | {"actions": made["actions"] * 2}
    with pytest.raises(ArtefactError, match=r"outside the action space's \[-1, 1\], as in .*clip_actions=true"):
        read(wide)
    clipped = read(wide, clip_actions=True)
    assert np.abs(clipped.action).max() == 1
    assert checks_of(clipped)["actions_clipped"] == int((np.abs(wide["actions"]) > 1).any(axis=1).sum())
    for low, high in (((-2,), (2,)), ((-2, -2.5), (2, 3))):
        data = read(wide, action_low=low, action_high=high)
        assert data.info.action_high == (tuple(map(float, high)) * 2)[:2]
        np.testing.assert_array_equal(data.action, wide["actions"][np.arange(400) % 20 != 19])
    for low, high in (((-2,), ()), ((-1, -1, -1), (1, 1, 1))):
        with pytest.raises(SettingError, match="actions have 2 numbers; give one bound for all or one each"):
            read(wide, action_low=low, action_high=high)
    with pytest.raises(ArtefactError, match=r"low below high; number 0 has \[2, 2\]"):
        read(wide, action_low=(2,), action_high=(2,))
