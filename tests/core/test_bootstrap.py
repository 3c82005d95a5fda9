"""Unit under test: ``worldrl.core.statistics.bootstrap``."""

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import (
    bootstrap,
    bootstrap_band,
    interquartile_mean,
    jackknife,
    stratified_bootstrap,
)


def mean(values):
    return values.mean(axis=0)


def test_the_value_is_that_of_all_episodes_and_lies_inside():
    values = numpy_stream(0, "test").normal(3, 1, 40)
    found = bootstrap(values, np.median, generator=numpy_stream(0, "b"))
    assert found["value"] == np.median(values)
    assert found["lo"] < found["value"] < found["hi"]
    assert (found["n"], found["method"]) == (40, "bootstrap")


def test_equal_values_leave_no_uncertainty_and_one_value_no_interval():
    same = bootstrap(np.full(5, 2.5), mean, generator=numpy_stream(0))
    assert (same["lo"], same["value"], same["hi"]) == (2.5, 2.5, 2.5)
    alone = bootstrap(np.array([2.5]), mean, generator=numpy_stream(0))
    assert alone["value"] == 2.5
    assert np.isnan([alone["lo"], alone["hi"]]).all()


def test_a_band_is_each_columns_interval_with_the_same_draws():
    values = numpy_stream(1).normal(size=(12, 3))
    _, lo, hi = bootstrap_band(values, mean, generator=numpy_stream(2))
    for column in range(3):
        found = bootstrap(values[:, column], mean, generator=numpy_stream(2))
        assert [found["lo"], found["hi"]] == pytest.approx([lo[column], hi[column]])


def test_infinite_values_stay_infinite():
    found = bootstrap(np.full(4, np.inf), mean, generator=numpy_stream(0))
    assert (found["lo"], found["value"], found["hi"]) == (np.inf, np.inf, np.inf)


@pytest.mark.parametrize(("n", "low", "high"), [(8, 0.83, 0.94), (40, 0.91, 0.98)])
def test_how_often_the_interval_of_a_mean_holds_the_truth(n, low, high):
    draws = numpy_stream(3, n)
    found = [bootstrap(draws.normal(size=n), mean, generator=draws, resamples=200) for _ in range(300)]
    held = np.mean([interval["lo"] <= 0 <= interval["hi"] for interval in found])
    assert low < held < high


def test_nothing_to_draw_is_refused():
    with pytest.raises(SettingError, match="needs an episode"):
        bootstrap(np.zeros(0), mean, generator=numpy_stream(0))
    with pytest.raises(SettingError, match="resample"):
        bootstrap(np.zeros(3), mean, generator=numpy_stream(0), resamples=0)


def test_interquartile_mean_leaves_whole_quarters_out():
    assert interquartile_mean(np.array([[100.0, 1.0], [3.0, 2.0]])) == 2.5
    assert interquartile_mean(np.array([-90.0, 1, 2, 3, 400.0])) == 2  # one of five at each end
    assert interquartile_mean(np.array([1.0, 2.0, 9.0])) == 4


def test_runs_are_drawn_again_within_their_task():
    """Two tasks of very different scores: drawing over both would spread the mean by hundreds, within them by one."""
    scores = np.array([[0.0, 1000.0], [2.0, 1002.0], [1.0, 1001.0]])
    found = stratified_bootstrap(scores, np.mean, generator=numpy_stream(0, "s"))
    assert (found["n"], found["value"]) == (3, 501)
    assert 500 <= found["lo"] < 501 < found["hi"] <= 502
    # 9 of the 3 ** 6 equally likely draws are all-lowest or mixed so that the mean is at most 500.17: below 2.5 %.
    assert found["lo"] > 500


def test_one_run_has_no_interval_and_bad_shapes_are_refused():
    alone = stratified_bootstrap(np.array([[3.0, 5.0]]), np.mean, generator=numpy_stream(0))
    assert alone["value"] == 4
    assert np.isnan([alone["lo"], alone["hi"]]).all()
    for bad in (np.zeros(3), np.zeros((0, 2))):
        with pytest.raises(SettingError, match=r"scores \[runs, tasks\]"):
            stratified_bootstrap(bad, np.mean, generator=numpy_stream(0))


def test_leaving_each_out_gives_a_mean_its_own_standard_error():
    values = numpy_stream(5).normal(size=30)
    found = jackknife(values, np.mean)
    half = 1.959964 * values.std(ddof=1) / np.sqrt(30)
    assert found == {
        "n": 30,
        "value": pytest.approx(values.mean()),
        "lo": pytest.approx(values.mean() - half),
        "hi": pytest.approx(values.mean() + half),
        "method": "jackknife",
    }
    assert np.isnan([jackknife(values[:2], np.mean)[end] for end in ("lo", "hi")]).all()
    with pytest.raises(SettingError, match="needs an episode"):
        jackknife(values[:0], np.mean)
