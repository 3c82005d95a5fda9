"""Start states rendered by the real simulator, and recorded actions replayed in it."""

import numpy as np
import pytest

from worldrl.core.types import Episode
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND, EmbeddedBackend
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec


@pytest.fixture(scope="module")
def expert_episodes() -> list[Episode]:
    """Two of the scripted expert's, through the same code as collection and evaluation."""
    specs = [EpisodeSpec("PickRedCube", index, 7, source="expert") for index in range(2)]
    episodes = EmbeddedPlayer(EnvOptions(image_size=16), workers=0).play([(spec, ExpertActor()) for spec in specs])
    return sorted((e for e in episodes if isinstance(e, Episode)), key=lambda e: e.meta["index"])


def test_starts_are_the_states_of_collection_and_evaluation(expert_episodes):
    starts = EMBEDDED_BACKEND.starts(["PickRedCube", "CloseDrawer"], 2, seed=7, memory_frames=3, image_size=16)
    assert [record.task for record in starts] == ["PickRedCube"] * 2 + ["CloseDrawer"] * 2
    for start, episode in zip(starts, expert_episodes, strict=False):
        np.testing.assert_array_equal(start.reference, episode.frames[0, 0])
        np.testing.assert_array_equal(start.memory, np.stack([episode.frames[0, 0]] * 3))
        np.testing.assert_array_equal(start.command, episode.command[0])
        assert (start.instruction, start.step) == (episode.instruction, 0)
    again = EMBEDDED_BACKEND.starts(["PickRedCube"], 2, seed=7, memory_frames=1, image_size=16)
    other = EMBEDDED_BACKEND.starts(["PickRedCube"], 2, seed=8, memory_frames=1, image_size=16)
    np.testing.assert_array_equal(again[1].reference, starts[1].reference)
    assert not np.array_equal(other[1].reference, starts[1].reference)
    assert starts[1].source == "index 1, seed 7"


def test_recorded_actions_succeed_where_and_when_they_were_recorded_and_not_elsewhere(expert_episodes):
    actions, steps = [e.action for e in expert_episodes], [e.first_success for e in expert_episodes]
    assert all(steps)
    over: list[int] = []
    assert EMBEDDED_BACKEND.replay("PickRedCube", [(0, 7), (1, 7)], actions, over.append).tolist() == steps
    assert sum(over) == 2
    assert EMBEDDED_BACKEND.replay("PickRedCube", [(1, 7), (0, 7)], actions).tolist() == [-1, -1]


def test_actions_beyond_the_tasks_horizon_do_not_count(expert_episodes):
    episode = expert_episodes[0]
    idle = np.tile(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), (64 - len(episode) + 3, 1))
    late = np.concatenate([idle, episode.action])
    assert EMBEDDED_BACKEND.replay("PickRedCube", [(0, 7)], [late]).tolist() == [-1]


def test_states_of_both_domains_look_apart():
    """Practice on randomised data must plan from randomised images, of the same layouts."""
    look = {"seed": 3, "memory_frames": 2, "image_size": 16}
    clean, again = (EMBEDDED_BACKEND.starts(["BimanualLiftPot"], 1, **look)[0] for _ in range(2))
    (drawn,) = EmbeddedBackend("randomised").starts(["BimanualLiftPot"], 1, **look)
    assert np.array_equal(clean.memory, again.memory)
    assert np.abs(clean.memory.astype(int) - drawn.memory).mean() > 5
    assert np.array_equal(clean.command, drawn.command)
