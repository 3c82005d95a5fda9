import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.rewards.success import (
    HIGHEST_THRESHOLD,
    SuccessRule,
    calibrate_threshold,
    debounced_score,
    first_success,
    precision_recall,
    success_step,
)


def found(rows, debounce=2, threshold=0.6, streak=None):
    probability = torch.tensor(rows)
    streak = torch.zeros(len(rows), dtype=torch.int64) if streak is None else torch.tensor(streak)
    first, after = first_success(probability, SuccessRule(threshold, debounce), streak)
    return first.tolist(), after.tolist()


def test_the_frame_that_completes_the_streak_is_the_first_success():
    rows = [[0.7, 0.7, 0.7, 0.1], [0.1, 0.7, 0.1, 0.7], [0.6, 0.6, 0.0, 0.0], [0.0, 0.59, 0.59, 0.7]]
    assert found(rows) == ([1, -1, 1, -1], [0, 1, 0, 1])
    assert found(rows, debounce=1) == ([0, 1, 0, 3], [0, 1, 0, 1])
    assert found(rows, debounce=3) == ([2, -1, -1, -1], [0, 1, 0, 1])


@pytest.mark.parametrize("debounce", [1, 2, 3, 5])
def test_the_streak_runs_on_over_chunk_borders(debounce):
    """Cut anywhere, the pieces find what the whole finds."""
    rule = SuccessRule(0.4, debounce)
    probability = torch.rand(200, 12, generator=stream(0, "probability"))
    zero = torch.zeros(200, dtype=torch.int64)
    whole, end = first_success(probability, rule, zero)
    for cut in (1, 4, 8, 11):
        a, streak = first_success(probability[:, :cut], rule, zero)
        b, streak = first_success(probability[:, cut:], rule, streak)
        joined = torch.where(a >= 0, a, torch.where(b >= 0, b + cut, -1))
        assert torch.equal(joined, whole)
        assert torch.equal(streak, end)
    assert (whole >= 0).any()
    assert (whole < 0).any() or debounce == 1


def test_nan_is_no_success():
    assert found([[float("nan"), 0.7, float("nan"), 0.7]]) == ([-1], [1])


@pytest.mark.parametrize(("threshold", "debounce"), [(0.0, 2), (1.0, 2), (float("nan"), 2), (0.5, 0)])
def test_rules_that_accept_everything_or_nothing_are_refused(threshold, debounce):
    with pytest.raises(SettingError, match=r"outcome\."):
        SuccessRule(threshold, debounce)


def test_the_score_is_the_largest_threshold_that_still_fires():
    probability = torch.rand(300, 9, generator=stream(0, "score"))
    for debounce in (1, 2, 4):
        score = debounced_score(probability.numpy(), debounce)
        for row in range(0, 300, 30):
            for level, fires in ((score[row], True), (np.nextafter(score[row], np.float32(2)), False)):
                first, _ = first_success(
                    probability[row : row + 1], SuccessRule(float(level), debounce), torch.zeros(1).long()
                )
                assert (first.item() >= 0) == fires


def test_a_rollout_of_fewer_frames_than_must_succeed_has_no_score():
    probability = np.ones((2, 3), np.float32)
    assert debounced_score(probability, 3).tolist() == [1, 1]
    assert debounced_score(probability, 4).tolist() == [0, 0]


def test_counts():
    predicted, actual = np.array([1, 1, 0, 0, 1], bool), np.array([1, 0, 1, 0, 1], bool)
    assert precision_recall(predicted, actual) == {"tp": 2, "fp": 1, "fn": 1, "tn": 1}


def calibrated(score, actual, target=0.9, default=0.5):
    return calibrate_threshold(
        np.array(score, np.float32), np.array(actual, bool), target_precision=target, default=default
    )


def test_the_lowest_threshold_with_the_precision():
    assert calibrated([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0]) == pytest.approx(0.8)
    assert calibrated([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], target=0.5) == pytest.approx(0.6)
    assert calibrated([0.9, 0.8, 0.7, 0.6], [1, 1, 1, 0], target=0.75) == pytest.approx(0.6)


def test_never_below_the_floor_nor_at_one():
    assert calibrated([0.2, 0.1], [1, 0]) == 0.5
    assert calibrated([1.0, 0.3], [1, 0]) == pytest.approx(0.5)
    assert calibrated([1.0, 0.9995, 0.7], [1, 1, 0]) == pytest.approx(HIGHEST_THRESHOLD)


def test_where_the_precision_is_out_of_reach_the_surest_threshold_is_taken():
    assert calibrated([0.6, 0.9], [1, 0]) == pytest.approx(0.6)
    # 12 of 15 from 0.7 on is surer than 2 of 3 from 0.9 on, and than 13 of 25 over all.
    score = [0.95, 0.9, 0.9] + [0.7] * 12 + [0.6] * 10
    actual = [0, 1, 1] + [1] * 10 + [0] * 2 + [1] + [0] * 9
    assert calibrated(score, actual) == pytest.approx(0.7)


def test_without_successes_the_floor_only_if_nothing_false_reaches_it():
    assert calibrated([0.1, 0.2], [0, 0]) == 0.5
    assert calibrated([0.1, 0.8], [0, 0]) == HIGHEST_THRESHOLD


def test_the_step_of_a_success_is_that_of_its_last_frame():
    """Frames two control steps apart, the first imagined one after two; the second row's streak comes too late for two frames."""
    probability = torch.tensor([[0.1, 0.9, 0.9, 0.9], [0.9, 0.1, 0.1, 0.9]])
    assert success_step(probability, SuccessRule(0.5, 2), 2).tolist() == [6, -1]
