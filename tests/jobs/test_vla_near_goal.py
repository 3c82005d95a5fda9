"""The policy's failures that came near to the goal stand several times among what the world model learns from."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.data import collect
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.vla import near_goal as vla_near_goal
from worldrl.jobs.vla.near_goal import near_failures
from worldrl.jobs.vla.plan import check_near_goal
from worldrl.jobs.vla.settings import CollectionSettings
from worldrl.rollout.real.goal_distance import nearest_to_goal


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """One expert's success at picking a cube up."""
    folder = tmp_path_factory.mktemp("expert") / "run"
    collect.main(
        CollectSettings(
            run_dir=str(folder),
            seed=3,
            tasks=["PickRedCube"],
            image_size=16,
            workers=0,
            expert_episodes=1,
            hold_steps=0,
        )
    )
    (episode,) = EpisodeDataset.open(folder / "dataset").load()
    return episode


def cut(episode, steps):
    """The episode as it would be, had it ended before its success."""
    return replace(
        episode,
        **{name: getattr(episode, name)[: steps + 1] for name in ("frames", "state", "command", "contact")},
        **{name: getattr(episode, name)[:steps] for name in ("action", "reward")},
        terminated=False,
        truncated=True,
    )


def test_the_further_an_expert_came_the_nearer_it_was(expert):
    """Cut short at the approach, at the closing, in the air: the simulator says so, the recording does not."""
    begun, came, lifted = nearest_to_goal([cut(expert, steps) for steps in (1, len(expert) // 2, len(expert) - 1)])
    assert begun > came > lifted
    assert begun > 0.2  # the hand begins above the table, the cube lies on it
    assert lifted < 0.03


def test_a_recording_that_the_simulator_does_not_repeat_is_refused(expert):
    """Its actions lead elsewhere than its own measured states: nobody knows how near it came."""
    moved = replace(expert, action=0 * expert.action)
    with pytest.raises(ArtefactError, match=r"PickRedCube episode index 0, seed .*does not repeat"):
        nearest_to_goal([moved])


def episode(number, *, task="PickRedCube", source="policy", success=False):
    return SimpleNamespace(number=number, task=task, meta={"source": source}, success=success)


def test_the_nearest_share_of_each_tasks_failures_of_the_policy_is_repeated(monkeypatch):
    """An episode's distance is its number, in centimetres."""
    monkeypatch.setattr(vla_near_goal, "nearest_to_goal", lambda es: np.array([e.number / 100 for e in es]))
    picks = [episode(n) for n in (7, 3, 9, 5)] + [episode(4, source="dream")]
    others = [
        episode(1, source="blind_expert"),
        episode(2, success=True),
        episode(50, task="OpenDrawer"),
        episode(40, task="OpenDrawer"),
    ]
    found = near_failures(CollectionSettings(near_goal_share=0.4, near_goal_weight=3), [*picks, *others])
    assert Counter(e.number for e in found.repeats) == {3: 2, 4: 2, 40: 2}
    assert found.counts == {
        "PickRedCube": {"failures": 5, "near": 2, "within_m": 0.04},
        "OpenDrawer": {"failures": 2, "near": 1, "within_m": 0.4},
    }
    assert near_failures(CollectionSettings(), picks) == vla_near_goal.NearGoal([], {})


def test_the_rooms_that_do_not_measure_distances_are_refused():
    check_near_goal(0.3, "embedded", ["PickRedCube"])
    check_near_goal(0.0, "libero_goal", ["turn_on_the_stove"])
    for suite, tasks in (("libero_goal", ["turn_on_the_stove"]), ("embedded", ["BimanualLiftPot"])):
        with pytest.raises(SettingError, match=r"near_goal_share=0.3: .* tasks of one arm only"):
            check_near_goal(0.3, suite, tasks)
    for name, value in {"share": 1.5, "weight": 1}.items():
        with pytest.raises(SettingError, match=f"collection.near_goal_{name}"):
            CollectionSettings(**{f"near_goal_{name}": value})
