"""Units under test: ``worldrl.rollout.suites.backend``, and who may act in an external suite, through a tiny suite's workers."""

import sys
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.rollout.agents.actors import ExpertActor, ImaginedPlanActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, execute
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.backend import ExternalBackend, initial_state
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch

TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
TASK, HORIZON, STATES, FIRST = "reach_right", 30, 12, 50


@pytest.fixture(scope="module")
def pool():
    with SimulatorPool(Launch("fake", sys.executable, TARGET, {"image_size": 8}), workers=1, slots=2) as workers:
        yield workers


@pytest.fixture
def simulator_backend(pool):
    return ExternalBackend(lambda: pool, horizons={TASK: HORIZON}, states=range(FIRST, FIRST + STATES))


def play(pool, actor, specs):
    rules = Rules(dict.fromkeys({spec.task for spec in specs}, HORIZON), ("scene",), 0, range(len(specs)))
    found = [item for item in play_episodes(pool, specs, actor, rules) if isinstance(item, Episode)]
    return sorted(found, key=lambda episode: episode.meta["index"])


def test_every_initial_state_comes_once_before_any_comes_again_and_none_of_the_evaluations():
    states = range(FIRST, FIRST + STATES)
    drawn = [initial_state(TASK, index, 7, states=states) for index in range(3 * STATES)]
    assert sorted(drawn[:STATES]) == list(states)
    assert drawn[:STATES] == drawn[STATES : 2 * STATES] == drawn[2 * STATES :]
    assert drawn[:STATES] != [initial_state("reach_up", index, 7, states=states) for index in range(STATES)]


def test_starts_show_the_state_that_real_episodes_begin_at(pool, simulator_backend):
    records = simulator_backend.starts([TASK, "reach_up"], STATES + 1, seed=3, memory_frames=2, image_size=8)
    for task, part in ((TASK, records[: STATES + 1]), ("reach_up", records[STATES + 1 :])):
        for index, record in enumerate(part):
            spec = simulator_backend.placed(EpisodeSpec(task, index, 3))
            row = pool.reset({0: Start(task, spec.init_id, 3)}, render=True)[0]
            if index < STATES:  # the tiny suite draws from number and seed, LIBERO from the number alone
                np.testing.assert_array_equal(record.memory[-1], row["image"])
                np.testing.assert_array_equal(record.command, row["command"])
            assert (record.task, record.instruction) == (task, task.replace("_", " "))
    np.testing.assert_array_equal(records[0].memory, records[STATES].memory)
    assert simulator_backend.horizons([TASK]) == {TASK: HORIZON}
    with pytest.raises(SettingError, match="draw 8, not 16 pixels"):
        simulator_backend.starts([TASK], 1, seed=3, memory_frames=2, image_size=16)


def test_imagined_rollouts_are_executed_where_they_begin_and_measured_by_the_first_real_success(
    pool, simulator_backend, tmp_path
):
    """Twenty equal steps lead to the mark, and count from where 0.05 m are left; the last row stays where it is."""
    count, seed = 5, 11
    action, expected = np.zeros((count, HORIZON + 5, 7), np.float32), []
    specs = [simulator_backend.placed(EpisodeSpec(TASK, index, seed)) for index in range(count)]
    for index, spec in enumerate(specs):
        way = np.array([0.5, 0.0]) - pool.reset({0: Start(TASK, spec.init_id, seed)}, render=False)[0]["state"][:2]
        left = np.linalg.norm(way) * (1 - np.arange(1, 21) / 20)
        if index < count - 1:
            action[index, :20, :2] = way / (20 * 0.05)
        expected.append(int(np.argmax(left < 0.05)) + 1 if index < count - 1 else -1)
    none = np.zeros(action.shape[:2], np.float32)
    policy_rollouts = PolicyRollouts((TASK,) * count, np.arange(count), np.full(count, seed), action, none, 1)
    np.testing.assert_array_equal(execute(policy_rollouts, simulator_backend), expected)
    policy_rollouts.save(tmp_path / "imagined_rollouts.npz")
    played = play(pool, ImaginedPlanActor(str(tmp_path / "imagined_rollouts.npz")), specs)
    assert [episode.first_success or -1 for episode in played] == expected
    for index, episode in enumerate(played):
        np.testing.assert_array_equal(episode.action, action[index, : len(episode)])


def test_noise_shakes_the_experts_motion_by_the_episodes_own_stream_and_not_its_gripper(pool, simulator_backend):
    specs = [simulator_backend.placed(EpisodeSpec(TASK, index, 2)) for index in range(3)]
    plain, shaken = play(pool, ExpertActor(), specs), play(pool, ExpertActor(noise=0.2), specs)
    for a, b in zip(plain, shaken, strict=True):
        n = min(len(a), len(b))
        assert np.abs(a.action[:n, :6] - b.action[:n, :6]).max() > 0.05
        np.testing.assert_array_equal(a.action[:n, 6], b.action[:n, 6])
        assert np.abs(b.action).max() <= 1
    for b, again in zip(shaken, play(pool, ExpertActor(noise=0.2), specs[::-1]), strict=True):
        np.testing.assert_array_equal(b.action, again.action)  # whatever is played beside it
    with pytest.raises(SettingError, match="whose only variation is noise"):
        play(pool, ExpertActor(blind=True), specs)
