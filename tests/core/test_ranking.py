"""Unit under test: ``core/statistics/ranking.py``: which policy is best, and rank agreement."""

import numpy as np
import pytest
from scipy import stats

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.ranking import mean_maximum_rank_violation, probability_best, spearman


def best(success, stratum=None, **over):
    success = np.array(success, bool)
    given = stratum or ["task"] * success.shape[1]
    return probability_best(success, given, generator=numpy_stream(0, "test"), **over)


def test_two_policies_that_differ_in_one_of_n_episodes_tie_as_often_as_it_is_not_drawn():
    """The better one ties with probability (1 - 1/n)^n and is ahead otherwise; ties are shared."""
    n = 10
    ahead = np.zeros((2, n), bool)
    ahead[0, 3] = True
    tie = (1 - 1 / n) ** n
    assert best(ahead) == pytest.approx([1 - tie / 2, tie / 2], abs=0.01)


def test_the_comparison_is_paired():
    """B solves all that A solves and one more: unpaired resampling would often put A ahead, paired never does."""
    rows = np.zeros((2, 40), bool)
    rows[:, :20] = True
    rows[1, 20] = True
    share = best(rows)
    assert share[0] == pytest.approx((1 - 1 / 40) ** 40 / 2, abs=0.01)
    apart = np.array([rows[0], np.roll(rows[1], 20)])
    assert best(apart)[0] > share[0] + 0.1


def test_probabilities_sum_to_one_and_follow_a_permutation_exactly():
    rows = numpy_stream(1, "rows").random((6, 30)) < 0.5
    tasks = ["a", "b", "b"] * 10
    share, order = best(rows, tasks), [3, 0, 5, 1, 4, 2]
    assert share.sum() == pytest.approx(1, abs=1e-12)
    assert best(rows[order], tasks).tolist() == share[order].tolist()
    assert best(np.ones((4, 5))).tolist() == [0.25] * 4


def test_episodes_are_drawn_within_their_stratum():
    """Each stratum of one episode is always drawn, so nothing varies."""
    rows = [[1, 0, 1], [1, 0, 0]]
    assert best(rows, ["a", "b", "c"]).tolist() == [1, 0]
    assert best(rows)[1] > 0.05


@pytest.mark.parametrize(("shape", "strata"), [((0, 3), 3), ((2, 0), 0), ((2, 3), 2)])
def test_nothing_to_compare_is_refused(shape, strata):
    with pytest.raises(SettingError, match="probability_best: needs outcomes"):
        best(np.zeros(shape, bool), ["a"] * strata or [])


def test_spearman_is_scipys_and_its_interval_bonett_and_wrights():
    draw = numpy_stream(2, "pairs")
    x = draw.integers(0, 6, 15).astype(float)
    y = x + draw.normal(0, 2, 15)
    found = spearman(x, y)
    assert found["r"] == pytest.approx(stats.spearmanr(x, y).statistic)
    half = stats.norm.ppf(0.975) * np.sqrt((1 + found["r"] ** 2 / 2) / 12)
    assert (np.arctanh(found["lo"]), np.arctanh(found["hi"])) == pytest.approx(
        (np.arctanh(found["r"]) - half, np.arctanh(found["r"]) + half)
    )
    perfect = spearman([1, 2, 3, 4], [2, 4, 8, 16])
    assert (perfect["r"], perfect["lo"], perfect["hi"]) == pytest.approx((1, 1, 1))
    for wrong in ([1, 2, 3], [1, 1, 1, 1]):
        with pytest.raises(SettingError, match="spearman"):
            spearman(wrong, wrong)


def test_rank_violation_is_the_real_loss_of_the_worst_wrong_pair():
    assert mean_maximum_rank_violation([1, 2, 3], [0.1, 0.2, 0.9]) == 0
    assert mean_maximum_rank_violation([2, 1], [0.1, 0.7]) == pytest.approx(0.6)
    # the first two are swapped (0.3 apart), the third is where it should be
    assert mean_maximum_rank_violation([2, 1, 9], [0.1, 0.4, 0.9]) == pytest.approx(0.2)
