import dataclasses

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.core.statistics import intervals as stats
from worldrl.evaluation.report.model import Curve, Filmstrip, Gate, ImaginedReal, SuccessRow


def test_the_records_of_core_stats_are_accepted_as_they_are():
    a, b = np.array([True, False, False, True]), np.array([True, True, True, False])
    row = SuccessRow("task", "goal", stats.wilson(2, 4), stats.wilson(3, 4), stats.paired(a, b))
    assert row.paired is not None
    assert row.paired["diff"] == 0.25


def test_swapped_policies_are_caught(row, paired):
    with pytest.raises(ArtefactError, match=r"before must count the paired episodes, k = both \+ only_a"):
        dataclasses.replace(row("t", "", 100, 40, 5, 20), paired=paired(100, 40, 20, 5))


def test_a_difference_of_the_other_sign_is_caught(row):
    good = row("t", "", 100, 40, 5, 20)
    flipped = {**good.paired, "diff": -good.paired["diff"]}
    with pytest.raises(ArtefactError, match="a = before and b = after"):
        dataclasses.replace(good, paired=flipped)


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"k": 101}, "k / n"), ({"rate": 0.5}, "k / n"), ({"n": 0}, "k / n"), ({"lo": 0.9}, "interval must hold"),
     ({"hi": 0.1}, "interval must hold"), ({"rate": float("nan")}, r"not finite \['rate'\]"), ({"k": "45"}, "finite")],
)  # fmt: skip
def test_a_broken_rate_is_refused_with_its_rule(rate, change, rule):
    with pytest.raises(ArtefactError, match=rule):
        ImaginedReal("round 1", imagined={**rate(45, 100), **change})


def test_a_missing_key_is_named(rate):
    broken = {key: value for key, value in rate(45, 100).items() if key != "lo"}
    with pytest.raises(ArtefactError, match=r"missing \['lo'\]"):
        SuccessRow("task", before=broken)


def test_an_unknown_direction_is_refused():
    with pytest.raises(ArtefactError, match="at_most"):
        Gate("psnr", 1.0, 2.0, True, direction="below")  # type: ignore[arg-type]


def test_a_band_without_its_series_is_refused():
    with pytest.raises(ArtefactError, match="reward"):
        Curve("t", "x", "y", {"loss": [(0, 1)]}, {"reward": [(0, 1, 2)]})


@pytest.mark.parametrize(
    ("frames", "labels", "rule"),
    [
        (np.zeros((2, 8, 8, 3), np.float32), ["a", "b"], "uint8"),
        (np.zeros((2, 3, 8, 8), np.uint8), ["a", "b"], "uint8"),
        (np.zeros((3, 8, 8, 3), np.uint8), ["a", "b"], "one label per time step"),
        (np.zeros((0, 8, 8, 3), np.uint8), ["a"], "needs frames"),
    ],
)
def test_frames_of_another_layout_are_refused(frames, labels, rule):
    with pytest.raises(ArtefactError, match=rule):
        Filmstrip("strip", "", {"real": frames}, labels)


def test_rows_of_two_sizes_are_refused():
    rows = {"real": np.zeros((1, 8, 8, 3), np.uint8), "imagined": np.zeros((1, 9, 8, 3), np.uint8)}
    with pytest.raises(ArtefactError, match="one image size"):
        Filmstrip("strip", "", rows, ["a"])
