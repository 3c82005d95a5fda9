"""Baselines and scales of a group, by their closed forms on hand-made rewards: a wrong sign or normaliser fails."""

from math import exp

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.methods.rl.advantages import (
    against_one,
    against_record,
    entropy_aware,
    group_std,
    mixed_certainty,
    novelty,
    shrunk,
    single_rollout,
)
from worldrl.methods.rl.interfaces import Trace

ONE_OF_FOUR, ALONE = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)


def seen(group=ALONE, times=1, iteration=0, **over):
    return Trace(iteration, group, torch.ones(times, len(group), dtype=torch.bool), **over)


def close(found, wanted):
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype), atol=1e-3, rtol=0)


def test_mapo_divides_by_the_mean_as_far_as_the_group_is_certain():
    """p = 1/4: λ = 1 - 4 · 3/16 = 1/4; z = 1.5, percent = 3."""
    wins = ONE_OF_FOUR > 0
    close(mixed_certainty(ONE_OF_FOUR, seen(wins=wins)), [[0.75 * 1.5 + 0.25 * 3, *[0.75 * -0.5 + 0.25 * -1] * 3]])
    half = torch.tensor([1.0, 1, 0, 0])
    close(mixed_certainty(half, seen(wins=half > 0)), group_std(half, seen()))  # λ = 0
    none = torch.zeros(4)
    assert mixed_certainty(none, seen(wins=none > 0)).tolist() == [[0] * 4]


def test_brpo_takes_each_mate_in_turn_as_the_reference():
    value, group = torch.tensor([1.0, 0, 0.5, 3, 4]), torch.tensor([0, 0, 0, 1, 1])
    assert against_one(value, seen(group, iteration=0)).tolist() == [[0, -1, -1, 0, 1]]
    assert against_one(value, seen(group, iteration=1)).tolist() == [[1, 0, 1, -1, 0]]
    assert against_one(value, seen(group, iteration=5)).tolist() == [[1, -1, 0, -1, 0]]


def test_a_record_is_a_baseline_for_groups_of_one():
    """Gains 0.75, -0.5, 0.25, -0.5: mean 0, variance (9/16 + 1/4 + 1/16 + 1/4) / 4 = 9/32."""
    value, predicted = torch.tensor([1.0, 0, 1, 0]), torch.tensor([0.25, 0.5, 0.75, 0.5])
    gain, scale = torch.tensor([0.75, -0.5, 0.25, -0.5]), (9 / 32) ** 0.5
    trace = seen(torch.arange(4), predicted=predicted)
    close(against_record(value, trace), [(gain / scale).tolist()])
    surprised = seen(torch.arange(4), times=2, predicted=predicted, surprise=torch.tensor([[0.5] * 4, [100.0] * 4]))
    found = single_rollout(value, surprised)
    close(found[0], gain / scale + 0.2)  # α H = 0.4 · 0.5, below |A| / 2
    close(found[1], gain / scale + (gain / scale).abs() / 2)
    with pytest.raises(SettingError, match="against_record needs rollouts that succeed or fail"):
        against_record(value, seen())


def test_a_small_group_is_drawn_to_its_record():
    """b = (4 · 0.5 + 1) / (4 + 4) = 3/8, gains 5/8 and -3/8: mean -1/8, variance (25 + 27) / 256 - 1/64 = 3/16."""
    trace = seen(predicted=torch.full((4,), 0.5))
    close(shrunk(ONE_OF_FOUR, trace), [[x / (3 / 16) ** 0.5 for x in (0.625, -0.375, -0.375, -0.375)]])


def test_undecided_chunks_count_more():
    """z of errors 1 and 3 is -1 and 1; a chunk that does not count leaves the scale alone."""
    trace = seen(times=2, surprise=torch.tensor([[1.0] * 4, [3.0] * 4]))
    found, plain = entropy_aware(ONE_OF_FOUR, trace), group_std(ONE_OF_FOUR, seen())[0]
    close(found[0], plain * 0.9)
    close(found[1], plain * 1.1)
    valid = torch.tensor([[True] * 4, [True] * 4, [False] * 4])
    more = Trace(0, ALONE, valid, surprise=torch.tensor([[1.0] * 4, [3.0] * 4, [900.0] * 4]))
    close(entropy_aware(ONE_OF_FOUR, more)[1], plain * 1.1)


def test_unlikely_successes_count_more_and_likely_ones_no_less():
    """Scores -3, -1, -1, -3 around -2; successes are the first two."""
    value, surprise = torch.tensor([1.0, 1, 0, 0]), torch.tensor([[3.0, 1, 1, 3]])
    plain = group_std(value, seen())[0]
    found = novelty(value, seen(surprise=surprise))[0]
    bonus = min(1 - exp(-1), 0.5 * float(plain[0]))
    close(found, plain + torch.tensor([bonus, 0, 0, 0]))
    slight = novelty(value, seen(surprise=torch.tensor([[1.1, 0.9, 0.9, 1.1]])))[0]
    close(slight[0], plain[0] + 1 - exp(-0.1))
