"""Units under test: ``worldrl.data.offline.trajectories`` and ``reference_scores``."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.offline.reference_scores import Reference, d4rl_reference, normalised_score, scores
from worldrl.data.offline.trajectories import (
    DatasetInfo,
    Trajectories,
    VectorEpisode,
    env_action,
    from_episodes,
    join,
    unit_action,
)

INFO = DatasetInfo("file.hdf5", action_low=(-2.0, 0.0), action_high=(2.0, 1.0))


def episode(number: int, steps: int, *, terminated: bool = False, state: bool = True) -> VectorEpisode:
    base = 100.0 * number
    return VectorEpisode(
        obs=(base + np.arange(3 * (steps + 1), dtype=np.float32)).reshape(-1, 3),
        action=np.tile(np.array([[1.0, 0.25]], np.float32), (steps, 1)),
        reward=np.arange(1, steps + 1, dtype=np.float32),
        terminated=terminated,
        truncated=not terminated,
        qpos=base + np.arange(2.0 * steps).reshape(-1, 2) if state else None,
        qvel=np.full((steps, 1), base) if state else None,
        seed=number,
    )


@pytest.fixture
def data() -> Trajectories:
    """Three episodes of 2, 1 and 3 steps; the second terminated."""
    return from_episodes(INFO, [episode(0, 2), episode(1, 1, terminated=True), episode(2, 3)])


def test_rows_lie_back_to_back_with_true_successors(data: Trajectories) -> None:
    assert data.episode.tolist() == [0, 0, 1, 2, 2, 2]
    assert data.bounds().tolist() == [0, 2, 3, 6]
    assert data.returns().tolist() == [3, 1, 6]
    assert data.terminated.tolist() == [False, False, True, False, False, False]
    assert data.truncated.tolist() == [False, True, False, False, False, True]
    # Row 1 ends episode 0: its successor is that episode's last observation, not the first of episode 1.
    assert data.next_obs[1].tolist() == [6, 7, 8]
    assert data.obs[2].tolist() == [100, 101, 102]
    assert data.qpos is not None
    assert data.qpos[3].tolist() == [200, 201]


def test_transitions_scale_actions_to_one(data: Trajectories) -> None:
    rows = data.transitions()
    assert rows.action[0].tolist() == [0.5, -0.5]
    assert rows.truncated.tolist() == data.truncated.tolist()
    assert len(rows) == 6
    back = env_action(unit_action(data.action, INFO), INFO)
    np.testing.assert_array_equal(back, data.action)


def test_scaling_is_the_identity_for_bounds_of_one() -> None:
    info = DatasetInfo("x", (-1.0,), (1.0,))
    action = np.random.default_rng(0).uniform(-1, 1, (1000, 1)).astype(np.float32)
    np.testing.assert_array_equal(unit_action(action, info), action)
    np.testing.assert_array_equal(env_action(action, info), action)


def test_split_and_join_give_the_same_rows(data: Trajectories) -> None:
    again = join(INFO, [from_episodes(INFO, [part]) for part in data.split()])
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "episode", "qpos", "qvel", "seed"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name), err_msg=name)


def test_head_truncates_where_it_cuts(data: Trajectories) -> None:
    cut = data.head(5)
    assert cut.truncated.tolist() == [False, True, False, False, True]
    assert cut.seed is not None
    assert cut.seed.tolist() == [0, 1, 2]
    assert not data.truncated[4]
    assert data.head(3).truncated.tolist() == [False, True, False]
    with pytest.raises(SettingError, match="has 6 rows, got 7"):
        data.head(7)


def test_states_are_kept_only_if_all_episodes_have_them() -> None:
    assert from_episodes(INFO, [episode(0, 2), episode(1, 1, state=False)]).qpos is None


def test_a_recording_that_just_stops_counts_as_truncated() -> None:
    stopped = replace(episode(0, 2), truncated=False)
    assert from_episodes(INFO, [stopped]).truncated.tolist() == [False, True]


def broken(data: Trajectories, name: str, row: Any, value: Any) -> dict[str, Any]:
    array = getattr(data, name).copy()
    array[row] = value
    return {name: array}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: broken(d, "obs", (4, 1), np.nan), r"file.hdf5: episode 2, field 'obs' is NaN.* at step 1"),
        (lambda d: broken(d, "reward", 2, np.inf), r"episode 1, field 'reward' is NaN.* at step 0"),
        (lambda d: broken(d, "qvel", (5, 0), np.nan), r"episode 2, field 'qvel'"),
        (
            lambda d: broken(d, "action", (3, 1), 1.5),
            r"episode 2, field 'action' is 1.5 at number 1, outside .*\[0, 1\]",
        ),
        (lambda d: broken(d, "terminated", 3, True), r"episode 2, field 'terminated' ends the episode before"),
        (lambda d: broken(d, "truncated", 5, False), r"episode 2, field 'truncated' must be true"),
        (lambda d: broken(d, "episode", slice(3, None), 3), r"field 'episode' must count"),
        (lambda d: {"next_obs": d.next_obs[:, :2]}, r"field 'next_obs' has shape \[6, 2\], obs \[6, 3\]"),
        (lambda d: {"action": d.action[:, :1]}, r"field 'action' has 1 numbers, its bounds 2"),
        (lambda d: {"obs": d.obs.astype(np.float64)}, r"field 'obs' is float64 \[6, 3\], expected float32"),
        (lambda d: {"reward": d.reward[:0]}, r"holds no transitions"),
        (lambda d: {"seed": np.zeros(2, np.int64)}, r"field 'seed' has shape \[2\]"),
    ],
)
def test_bad_data_names_file_episode_and_field(data: Trajectories, change: Any, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        replace(data, **change(data))


def test_a_gap_inside_an_episode_cannot_be_written_as_observations(data: Trajectories) -> None:
    with pytest.raises(ArtefactError, match="episode 2, field 'next_obs'"):
        list(replace(data, **broken(data, "next_obs", (3, 0), 0)).split())


def test_no_episode_and_an_empty_one_are_refused() -> None:
    with pytest.raises(ArtefactError, match="holds no episode"):
        from_episodes(INFO, [])
    with pytest.raises(ArtefactError, match="episode 1, field 'rewards' is empty"):
        from_episodes(INFO, [episode(0, 1), episode(1, 0)])


# --- scores --------------------------------------------------------------------------------------------------------


def test_d4rl_constants_and_their_names() -> None:
    assert d4rl_reference("Hopper-v5") == (-20.272305, 3234.3)
    assert d4rl_reference("mujoco/halfcheetah/expert-v0") == (-280.178953, 12135.0)
    assert d4rl_reference("walker2d-medium-replay-v2") == (1.629008, 4592.3)
    assert d4rl_reference("Ant-v5") == (-325.6, 3879.7)
    for name in (None, "Pendulum-v1", "D4RL/antmaze/umaze-v1"):
        assert d4rl_reference(name) is None


def test_score_is_zero_at_random_and_hundred_at_expert() -> None:
    reference = Reference(-50.0, 150.0)
    assert [normalised_score(value, reference) for value in (-50, 150, 50, 250)] == [0, 100, 50, 150]
    for bad in (Reference(1, 1), Reference(2, 1), Reference(0, float("nan"))):
        with pytest.raises(SettingError, match="finite min < max"):
            normalised_score(0, bad)


def test_a_score_without_reference_is_labelled_raw() -> None:
    assert scores(7.0, d4rl=None, dataset=None) == {"raw": {"value": 7.0, "scale": "raw", "min": None, "max": None}}
    both = scores(10.0, d4rl=Reference(0, 20), dataset=Reference(10, 20))
    assert {name: score["value"] for name, score in both.items()} == {"d4rl": 50, "dataset": 0}
