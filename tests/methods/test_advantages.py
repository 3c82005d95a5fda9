import pytest
import torch

from worldrl.core.rng import stream
from worldrl.methods.rl.advantages import (
    as_given,
    batch_std,
    group_advantage,
    group_std,
    leave_one_out,
    mean_only,
    median,
)
from worldrl.methods.rl.groups import group_mean, group_range, group_sum, mates_mean
from worldrl.methods.rl.interfaces import Trace
from worldrl.methods.rl.selection import informative


def test_sums_and_means_scatter_by_group():
    value, group = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([0, 2, 0, 1, 2])
    assert group_sum(value, group).tolist() == [4, 4, 7]
    assert group_mean(value, group).tolist() == [2, 4, 3.5]


def test_mates_leave_oneself_out():
    value, group = torch.tensor([1.0, 2, 3, 4, 6]), torch.tensor([0, 0, 0, 1, 2])
    assert mates_mean(value, group).tolist() == [2.5, 2, 1.5, 0, 0]


def test_ranges_within_groups():
    value, group = torch.tensor([1.0, 5, 3, 4, 2, 5]), torch.tensor([0, 2, 0, 1, 2, 2])
    assert group_range(value, group).tolist() == [2, 0, 3]


def seen(group, times=1, **over):
    """A trace of rollouts that are all valid."""
    return Trace(0, group, torch.ones(times, len(group), dtype=torch.bool), **over)


ONE_OF_FOUR, ALONE = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (group_std, [1.5, -0.5, -0.5, -0.5]),  # mean 1/4, sample variance (9/16 + 3/16) / 3 = 1/4
        (batch_std, [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),  # deviation of the whole batch √3 / 4
        (mean_only, [0.75, -0.25, -0.25, -0.25]),
        (median, [4.0, 0, 0, 0]),
        (leave_one_out, [1, -1 / 3, -1 / 3, -1 / 3]),
        (as_given, [1.0, 0, 0, 0]),
    ],
)
def test_closed_forms_for_one_success_in_four(estimator, expected):
    advantage = estimator(ONE_OF_FOUR, seen(ALONE, times=3))
    torch.testing.assert_close(advantage, torch.tensor([expected] * 3), atol=1e-3, rtol=0)


def test_unequal_groups_each_have_mean_zero_and_deviation_one():
    group = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    advantage = group_advantage(torch.randn(10, generator=stream(0, "returns"), dtype=torch.float64), group)
    for number in range(3):
        own = advantage[group == number]
        assert own.mean().item() == pytest.approx(0, abs=1e-12)
        assert own.std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("estimator", [group_std, batch_std, mean_only])
def test_one_alone_and_all_equal_have_no_advantage(estimator):
    advantage = estimator(torch.tensor([1.0, 1, 1, 0, 0, 7]), seen(torch.tensor([0, 0, 0, 1, 1, 2])))
    assert advantage.tolist() == [[0] * 6]


@pytest.mark.parametrize("estimator", [group_std, batch_std, mean_only, leave_one_out])
def test_order_does_not_matter(estimator):
    value, group = torch.rand(12, generator=stream(0, "values"), dtype=torch.float64), torch.arange(12) // 4
    order = torch.randperm(12, generator=stream(0, "order"))
    one = estimator(value, seen(group))[:, order]
    torch.testing.assert_close(estimator(value[order], seen(group[order])), one)


def test_statistics_may_come_from_more_rollouts_than_are_learned_from():
    explored = (torch.tensor([0.0, 2, 4, 10, 10]), torch.tensor([0, 0, 0, 1, 1]))
    trace = seen(torch.tensor([0, 0, 1]), explored=explored)
    value = torch.tensor([4.0, 0, 11])
    assert mean_only(value, trace).tolist() == [[2, -2, 1]]
    assert group_std(value, trace)[0, :2].tolist() == pytest.approx([1, -1], abs=1e-5)
    assert group_std(value, trace)[0, 2] > 1e5  # the explored ones of its group are all equal


# -- which groups are learned from ---------------------------------------------------------------------------------


def kept(value, group, wins, **bounds):
    trace = seen(group, wins=wins)
    return informative(group_std(value, trace), value, trace, torch.Generator(), **bounds)[0].bool()


def test_only_mixed_groups_within_the_bounds_are_informative():
    rates = {0: 0, 1: 1, 2: 9, 3: 5, 4: 10}  # successes out of ten
    success = torch.cat([(torch.arange(10) < count).float() for count in rates.values()])
    group = torch.arange(50) // 10
    for low, high, expected in (
        (0, 1, [False, True, True, True, False]),
        (0.1, 0.9, [False, True, True, True, False]),
        (0.2, 0.8, [False, False, False, True, False]),
    ):
        found = kept(success, group, success > 0, keep_low=low, keep_high=high)
        assert found[::10].tolist() == expected
        assert torch.equal(found, found[::10].repeat_interleave(10))


def test_a_group_of_one_outcome_stays_where_something_else_tells_its_rollouts_apart():
    """All succeed with different trust; all fail with different agreement; all equal; one success of twenty, trusted by half."""
    group = torch.tensor([0, 0, 1, 1, 2, 2, *[3] * 20])
    value = torch.tensor([0.5, 1.0, -2.0, -1.0, 0.7, 0.7, 0.5, *[0.0] * 19])
    wins = torch.tensor([True, True, False, False, True, True, True, *[False] * 19])
    found = kept(value, group, wins, keep_low=0.1, keep_high=0.9)
    assert found[[0, 2, 4, 6]].tolist() == [True, True, False, False]
    rate = torch.tensor([0.5, 1.0, 0.7, 0.7, 0.0])  # success above the upper bound, but trust tells them apart
    more = kept(rate, torch.zeros(5, dtype=torch.int64), rate > 0, keep_low=0.1, keep_high=0.7)
    assert more.all()


def test_where_nothing_succeeds_or_fails_the_spread_alone_decides():
    value, group = torch.tensor([3.0, 3.0, 1.0, 2.0]), torch.tensor([0, 0, 1, 1])
    assert kept(value, group, None).tolist() == [False, False, True, True]
