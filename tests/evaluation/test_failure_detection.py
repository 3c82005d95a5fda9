"""Areas, alarms and lead of a monitor, each against a closed form."""

import math

import numpy as np
import pytest

from worldrl.evaluation.policy.failure_detection import (
    area_at_equal_time,
    area_of_highest,
    described,
    failure_detection,
    score_rows,
)
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec, Monitored


def outcome(index, score, *, success, limit=1.0, task="PickRedCube", steps=None):
    end = len(score) * 8 if steps is None else steps
    first = end if success else None
    watched = Monitored(limit, 8, tuple(score))
    return EpisodeOutcome(EpisodeSpec(task, index, 0), success, success, end, first, monitored=watched)


def test_a_score_of_time_alone_ranks_whole_episodes_and_says_nothing_at_equal_time():
    grows = np.arange(1.0, 9.0)
    some = [outcome(n, grows[: 3 + n], success=True) for n in range(4)]
    some += [outcome(9 + n, grows, success=False) for n in range(3)]
    rows = score_rows(some)
    assert area_of_highest(rows) == 1.0
    assert area_at_equal_time(rows) == 0.5


def test_at_equal_time_pairs_of_one_task_and_decision_count():
    some = [
        outcome(0, [1, 5], success=True),
        outcome(1, [2], success=True),
        outcome(2, [1.5, 4, 9], success=False),
        outcome(3, [0], success=False, task="OpenDrawer"),  # no success of its task: no pair
    ]
    # Decision 0: 1.5 above 1, below 2. Decision 1: 4 below 5. One of three pairs in order.
    assert area_at_equal_time(score_rows(some)) == pytest.approx(1 / 3)


def test_scores_of_several_tasks_are_in_units_of_their_limits():
    rows = score_rows([outcome(0, [2.0], success=True, limit=4.0), outcome(1, [2.0], success=False, limit=0.5)])
    assert rows[:, 2].tolist() == [0.5, 4.0]


def test_alarms_and_lead():
    some = [
        outcome(0, [0, 0], success=True, steps=14),
        outcome(1, [0, 2], success=True, steps=12),  # a false alarm
        outcome(2, [0, 0, 2, 0], success=False),  # at step 16 of 32
        outcome(3, [2, 0, 0, 0], success=False),  # at step 0
        outcome(4, [0, 0, 0, 0], success=False),  # missed
    ]
    found = failure_detection(some, {"PickRedCube": 13.0}, seed=0)["failure_detection"]
    assert (found["alarms_at_failures"]["k"], found["alarms_at_failures"]["n"]) == (2, 3)
    assert (found["false_alarms"]["k"], found["false_alarms"]["n"]) == (1, 2)
    assert found["lead_steps"]["mean"] == 24
    # Highest scores 2, 2, 0 of failures against 0, 2 of successes: (1 + 1/2 + 1 + 1/2 + 1/2 + 0) / 6.
    assert found["auroc"]["value"] == pytest.approx(3.5 / 6)
    assert found["auroc"]["lo"] <= found["auroc"]["value"] <= found["auroc"]["hi"]
    time = found["time_alone"]  # all that still run after 13 steps
    assert (time["alarms_at_failures"]["k"], time["false_alarms"]["k"], time["lead_steps"]["mean"]) == (3, 1, 19)
    assert "AUROC 0.58 [" in described(found)


def test_without_failures_there_is_no_area_and_no_alarm_at_one():
    found = failure_detection([outcome(0, [0.0], success=True)], {"PickRedCube": math.inf}, seed=0)
    assert "auroc" not in found["failure_detection"]
    assert found["failure_detection"]["alarms_at_failures"] is None
    assert "not measured" in described(found["failure_detection"])
