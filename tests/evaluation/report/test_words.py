import dataclasses
import re

import numpy as np
import pytest

from worldrl.core.statistics import intervals as stats
from worldrl.evaluation.report.model import SuccessRow
from worldrl.evaluation.report.words import duration, gain_kind, number, p_value, percent, points, true_minus, verdict


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u2212", "-")


def with_interval(row: SuccessRow, lo: float, hi: float) -> SuccessRow:
    assert row.paired is not None
    return dataclasses.replace(row, paired={**row.paired, "lo": lo, "hi": hi})


def test_a_gain_is_worded_as_one_statement(row):
    gain = with_interval(row("all", "", 300, 120, 15, 69), 0.11, 0.25)
    found = verdict(gain)
    assert found.kind == "gain"
    assert plain(found.sentence) == (
        "Real success rose from 45 % to 63 % (+18 points, 95 % interval +11 to +25, 300 paired episodes)."
    )


def test_a_loss_is_worded_as_a_loss(row):
    loss = with_interval(row("all", "", 100, 40, 30, 10), -0.32, -0.08)
    assert plain(verdict(loss).sentence) == (
        "Real success fell from 70 % to 50 % (-20 points, 95 % interval -32 to -8, 100 paired episodes)."
    )


@pytest.mark.parametrize(
    ("lo", "hi", "kind"),
    [
        (0.0, 0.4, "none"),
        (1e-9, 0.4, "gain"),
        (-1e-9, 0.4, "none"),
    ],
)
def test_a_gain_needs_a_lower_end_strictly_above_zero(row, lo, hi, kind):
    found = verdict(with_interval(row("all", "", 100, 30, 10, 30), lo, hi))
    assert found.kind == kind
    assert ("No gain shown" in found.sentence) == (kind == "none")


@pytest.mark.parametrize(("hi", "kind"), [(0.0, "none"), (-1e-9, "loss"), (1e-9, "none")])
def test_a_loss_needs_an_upper_end_strictly_below_zero(row, hi, kind):
    assert verdict(with_interval(row("all", "", 100, 30, 30, 10), -0.4, hi)).kind == kind


def test_a_small_lower_end_is_never_rounded_to_zero(row):
    found = verdict(with_interval(row("all", "", 500, 100, 40, 65), 0.002, 0.098))
    assert "+0.2 to +9.8" in found.sentence


def test_the_statement_adds_up_and_agrees_with_the_interval():
    """Whatever was measured: after minus before is the stated difference, and the verb follows from the ends."""
    rng = np.random.default_rng(0)
    exact = 0
    for _ in range(300):
        n = int(rng.integers(5, 400))
        a, b = rng.random(n) < rng.random(), rng.random(n) < rng.random()
        pair = stats.paired(a, b)
        row = SuccessRow("all", "", stats.wilson(int(a.sum()), n), stats.wilson(int(b.sum()), n), pair)
        found = verdict(row)
        before, after, diff, _, lo, hi = (float(x) for x in re.findall(r"[-+]?\d+\.?\d*", plain(found.sentence))[:6])
        # Three rounded numbers cannot always add up; then they are off by one in the last digit shown.
        decimals = len(re.search(r"from [\d]+\.?(\d*)|was [\d]+\.?(\d*)", found.sentence)[0].partition(".")[2])  # type: ignore[index]
        assert after - before == pytest.approx(diff, abs=1.01 * 10**-decimals)
        exact += abs(after - before - diff) < 1e-6
        assert lo <= diff <= hi
        expected = "gain" if pair["lo"] > 0 else "loss" if pair["hi"] < 0 else "none"
        assert found.kind == gain_kind(pair) == expected
        assert {"gain": lo > 0, "loss": hi < 0, "none": lo <= 0 <= hi}[expected]
        assert before == pytest.approx(100 * row.before["rate"], abs=0.5)  # type: ignore[index]
    assert exact >= 290


def test_what_was_not_paired_is_not_measured(row, rate):
    assert verdict(None).kind == "unmeasured"
    half = SuccessRow("all", before=rate(45, 100))
    assert verdict(half).kind == "unmeasured"
    assert "before it was 45.0 % of 100 episodes" in plain(verdict(half).sentence)
    unpaired = dataclasses.replace(row("all", "", 100, 30, 10, 30), paired=None)
    assert verdict(unpaired).kind == "unmeasured"
    assert "rose" not in verdict(unpaired).sentence


def test_one_episode_is_singular(row):
    assert plain(verdict(with_interval(row("all", "", 1, 0, 0, 1), -0.2, 1.0)).sentence).endswith("1 paired episode).")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not measured"), (-0.0, "0"), (float("nan"), "not measured"), (float("inf"), "not measured"), (0.86149, "0.8615"),
     (-2.5, "-2.5"), (12345.6, "12,346"), (1024, "1,024"), ("ready", "ready"), (3e-5, "3e-05")],
)  # fmt: skip
def test_numbers(value, text):
    assert plain(number(value)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("-1.57 [-7.39, 4.25]", "−1.57 [−7.39, 4.25]"), ("-0.03 to -.04", "−0.03 to −.04"),
     ("hopper-v5/replay-0", "hopper-v5/replay-0"), ("2026-11-23", "2026-11-23"), ("1e-05", "1e-05"), ("seed=-1", "seed=-1")],
)  # fmt: skip
def test_numbers_within_a_text_have_true_minus_signs_too(text, shown):
    assert true_minus(text) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "not run"), (float("nan"), "not run"), (4.44, "4.4 s"), (9.97, "10 s"), (59.6, "1 min 00 s"),
     (388.5, "6 min 28 s"), (3600, "1 h 00 min"), (7385, "2 h 03 min")],
)  # fmt: skip
def test_durations(seconds, text):
    assert plain(duration(seconds)) == text


def test_points_and_percent_keep_their_signs():
    assert plain(points(-0.068)) == "-6.8"
    assert points(0.0) == "0.0"
    assert points(0.0001) == "+0.0"
    assert plain(percent(0.45333)) == "45.3 %"
    assert p_value(0.0004) == "p < 0.001"
    assert p_value(0.0312) == "p = 0.031"
