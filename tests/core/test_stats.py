import itertools
import math

import numpy as np
import pytest
from scipy import stats as sps

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics import intervals as stats
from worldrl.core.statistics.intervals import (
    auroc,
    auroc_within,
    mcnemar,
    mean_interval,
    newcombe,
    paired,
    pearson,
    wilson,
)

# Per cent, from a published table of Wilson intervals (95 %): (k, n) -> lower, upper.
WILSON = {
    (5, 10): (23.7, 76.3),
    (10, 20): (29.9, 70.1),
    (25, 50): (36.6, 63.4),
    (50, 100): (40.4, 59.6),
    (250, 500): (45.6, 54.4),
    (1000, 2000): (47.8, 52.2),
    (9, 10): (59.6, 98.2),
    (18, 20): (69.9, 97.2),
    (45, 50): (78.6, 95.7),
    (90, 100): (82.6, 94.5),
    (180, 200): (85.1, 93.4),
    (1800, 2000): (88.6, 91.2),
    (49, 50): (89.5, 99.6),
    (490, 500): (96.4, 98.9),
    (10, 10): (72.2, 100.0),
    (20, 20): (83.9, 100.0),
    (50, 50): (92.9, 100.0),
}


@pytest.mark.parametrize(("counts", "limits"), WILSON.items())
def test_wilson_against_the_table(counts, limits):
    rate = wilson(*counts)
    assert (round(100 * rate["lo"], 1), round(100 * rate["hi"], 1)) == limits
    assert (rate["k"], rate["n"], rate["rate"], rate["method"]) == (*counts, counts[0] / counts[1], "wilson")


def test_the_quantile_is_the_normal_distributions():
    assert sps.norm.ppf(0.975) == stats.Z


def test_wilson_agrees_with_scipy_and_mirrors():
    for n in (1, 2, 7, 40):
        for k in range(n + 1):
            rate, mirror = wilson(k, n), wilson(n - k, n)
            expected = sps.binomtest(k, n).proportion_ci(method="wilson")
            assert (rate["lo"], rate["hi"]) == pytest.approx((expected.low, expected.high), abs=1e-12)
            assert rate["lo"] == pytest.approx(1 - mirror["hi"], abs=1e-12)
            assert 0 <= rate["lo"] <= rate["rate"] <= rate["hi"] <= 1


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses(k, n):
    with pytest.raises(SettingError, match=rf"got k={k}, n={n}"):
        wilson(k, n)


def outcomes(both, only_a, only_b, neither):
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    return np.array(a), np.array(b)


def test_newcombe_against_a_published_example():
    # Complete response before and after consolidation (Cavo et al. 2012), in Fagerland, Lydersen and Laake,
    # Statistical Analysis of Contingency Tables (2017), chapter 8: -0.0621 (-0.1186 to -0.0046).
    comparison = paired(*outcomes(both=59, only_a=16, only_b=6, neither=80))
    assert [round(comparison[key], 4) for key in ("diff", "lo", "hi")] == [-0.0621, -0.1186, -0.0046]
    assert comparison["p"] == pytest.approx(0.052479, abs=1e-6)
    assert (comparison["n"], comparison["both"], comparison["only_a"]) == (161, 59, 16)
    assert (comparison["only_b"], comparison["neither"]) == (6, 80)


def test_newcombe_holds_the_difference_lies_in_range_and_mirrors():
    for cells in itertools.product((0, 1, 5), repeat=4):
        if not sum(cells):
            continue
        both, only_a, only_b, neither = cells
        lo, hi = newcombe(*cells)
        assert -1 <= lo <= (only_b - only_a) / sum(cells) <= hi <= 1
        assert lo < hi
        assert newcombe(both, only_b, only_a, neither) == pytest.approx((-hi, -lo))
        assert newcombe(neither, only_a, only_b, both) == pytest.approx((lo, hi)), "φ sees no order"


def test_newcombe_without_correlation_is_the_unpaired_square_and_add():
    # φ = 0 where a margin is empty: A always succeeds, B 7 of 10.
    lo, hi = newcombe(7, 3, 0, 0)
    b, a = wilson(7, 10), wilson(10, 10)
    assert lo == pytest.approx(-0.3 - math.hypot(0.7 - b["lo"], a["hi"] - 1))
    assert hi == pytest.approx(-0.3 + math.hypot(b["hi"] - 0.7, 1 - a["lo"]))


def test_mcnemar_closed_form():
    assert mcnemar(0, 0) == 1
    assert mcnemar(3, 3) == 1
    assert mcnemar(0, 6) == pytest.approx(2 / 2**6)
    assert mcnemar(1, 5) == mcnemar(5, 1) == pytest.approx(2 * (1 + 6) / 2**6)


def test_paired_refuses():
    with pytest.raises(SettingError, match="a has 2 episodes and b 1"):
        paired([True, False], [True])
    with pytest.raises(SettingError, match="a: must be a bool array"):
        paired([1, 0], [True, False])
    with pytest.raises(SettingError, match="a: must be a bool array"):
        paired(np.zeros(0, bool), np.zeros(0, bool))


def coverage(cells, n, repeats, interval):
    """Share of simulated comparisons whose interval holds the true difference."""
    generator = numpy_stream(0, "coverage", str(cells), n)
    truth = cells[2] - cells[1]
    hits = 0
    for counts in generator.multinomial(n, cells, repeats):
        lo, hi = interval(counts, generator)
        hits += lo - 1e-12 <= truth <= hi + 1e-12
    return hits / repeats


@pytest.mark.parametrize("cells", [(0.4, 0.1, 0.2, 0.3), (0.9, 0.02, 0.05, 0.03), (0.1, 0.4, 0.4, 0.1)])
@pytest.mark.parametrize("n", [30, 100])
def test_newcombe_covers(cells, n):
    # 2000 repeats: standard error 0.5 points; a little conservative at extreme rates, as published
    share = coverage(cells, n, 2000, lambda counts, _: newcombe(*map(int, counts)))
    assert 0.935 <= share <= 0.999


def test_mean_interval_closed_form():
    # mean 2, sd 1, n 3: half width t(0.975, 2) / sqrt(3) = 4.302653 / 1.732051
    result = mean_interval([1.0, 2.0, 3.0])
    assert (result["n"], result["mean"], result["sd"], result["method"]) == (3, 2.0, 1.0, "student")
    assert result["hi"] - 2 == 2 - result["lo"] == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    with pytest.raises(SettingError, match="at least 2 values"):
        mean_interval([1.0])
    with pytest.raises(SettingError, match="value 1 is not finite"):
        mean_interval([1.0, math.nan])


def test_pearson_closed_form():
    # x = 1..4, y = 1, 3, 2, 4: r = 4 / 5; Fisher: tanh(atanh(r) ± z / sqrt(n - 3))
    result = pearson([1, 2, 3, 4], [1, 3, 2, 4])
    assert result["r"] == pytest.approx(0.8)
    assert result["lo"] == pytest.approx(math.tanh(math.atanh(0.8) - stats.Z))
    assert result["hi"] == pytest.approx(math.tanh(math.atanh(0.8) + stats.Z))
    # t = r sqrt(2 / (1 - r²)) = 1.885618 with 2 degrees of freedom: two-sided p = 0.2
    assert result["p"] == pytest.approx(0.2)
    with pytest.raises(SettingError, match="y is constant"):
        pearson([1, 2, 3, 4], [1, 1, 1, 1])
    with pytest.raises(SettingError, match="at least 4"):
        pearson([1, 2, 3], [1, 2, 3])
    with pytest.raises(SettingError, match="must be pairs"):
        pearson([1, 2, 3, 4], [1, 2, 3, 4, 5])


def test_an_area_within_strata_is_of_pairs_of_one_stratum():
    """The first stratum's four pairs are in order, of the second's two one is; the third has one outcome and no pair."""
    score = [4, 3, 2, 1, 9, 8, 7, 5, 6]
    hit = [True, True, False, False, True, False, True, True, True]
    found = auroc_within(score, hit, ["a"] * 4 + ["b"] * 3 + ["c"] * 2)
    assert found == {"value": pytest.approx((4 * 1 + 2 * 0.5) / 6), "pairs": 6, "strata": 2, "of": 3}
    assert auroc_within(score, hit, ["a"] * 9)["value"] == pytest.approx(auroc([4, 3, 9, 7, 5, 6], [2, 1, 8]))
    assert auroc_within([1.0, 2.0], [True, True], ["a", "b"]) == {"value": None, "pairs": 0, "strata": 0, "of": 2}
    with pytest.raises(SettingError, match="2 scores, 1 outcomes and 2 strata"):
        auroc_within([1.0, 2.0], [True], ["a", "b"])
