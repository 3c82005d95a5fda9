"""Motion before and after, plan by plan."""

import math

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.evaluation.world_model.motion_correlation import motion_ratio


def judged(before, after):
    return motion_ratio(before, after, generator=np.random.default_rng(0))


def test_pairs_decide_where_two_means_do_not():
    """Plans that move by 0.02 to 2: of 100 of them neither mean is known to a tenth, and every plan lost a twentieth."""
    draws = np.random.default_rng(1)
    before = draws.uniform(0.02, 2, 100)
    found = judged(before, 0.95 * before)
    assert (found["verdict"], found["n"], found["share"]) == ("kept", 100, 0.9)
    assert found["value"] == pytest.approx(0.05 * before.mean())
    assert 1.96 * before.std() / 10 > 0.1 * before.mean()  # a mean's own interval is wider than what is asked
    assert judged(before, 0.85 * before)["verdict"] == "lost"
    assert judged(before, 0.9 * before + draws.normal(0, 0.1, 100))["verdict"] == "not decided"
    assert judged(before, draws.permutation(before))["before"] == pytest.approx(found["before"])


def test_one_plan_decides_nothing_and_pairs_are_needed():
    found = judged([1.0], [1.0])
    assert found["verdict"] == "not decided"
    assert math.isnan(found["lo"])
    with pytest.raises(SettingError, match="2 plans before and 1 after"):
        judged([1.0, 2.0], [1.0])
