import pytest
import torch

from worldrl.core.rng import stream
from worldrl.methods.rl.advantages import group_advantage, group_mean, group_sum, informative, mates_mean


def test_sums_and_means_scatter_by_group():
    value, group = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([0, 2, 0, 1, 2])
    assert group_sum(value, group).tolist() == [4, 4, 7]
    assert group_mean(value, group).tolist() == [2, 4, 3.5]


def test_mates_leave_oneself_out():
    value, group = torch.tensor([1.0, 2, 3, 4, 6]), torch.tensor([0, 0, 0, 1, 2])
    assert mates_mean(value, group).tolist() == [2.5, 2, 1.5, 0, 0]


def test_closed_form_with_the_sample_deviation():
    """One success in four: mean 1/4, sample variance (9/16 + 3/16)/3 = 1/4, so A = 3/2 and -1/2."""
    advantage = group_advantage(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(advantage, torch.tensor([1.5, -0.5, -0.5, -0.5]), atol=1e-5, rtol=0)
    plain = group_advantage(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64), scale=False)
    torch.testing.assert_close(plain, torch.tensor([0.75, -0.25, -0.25, -0.25]))


def test_unequal_groups_each_have_mean_zero_and_deviation_one():
    group = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    advantage = group_advantage(torch.randn(10, generator=stream(0, "returns"), dtype=torch.float64), group, eps=0)
    for number in range(3):
        own = advantage[group == number]
        assert own.mean().item() == pytest.approx(0, abs=1e-12)
        assert own.std().item() == pytest.approx(1)


@pytest.mark.parametrize("scale", [True, False])
def test_one_alone_and_all_equal_have_no_advantage(scale):
    advantage = group_advantage(torch.tensor([1.0, 1, 1, 0, 0, 7]), torch.tensor([0, 0, 0, 1, 1, 2]), scale=scale)
    assert advantage.tolist() == [0] * 6


@pytest.mark.parametrize("scale", [True, False])
def test_order_does_not_matter(scale):
    value, group = torch.rand(12, generator=stream(0, "values"), dtype=torch.float64), torch.arange(12) // 4
    order = torch.randperm(12, generator=stream(0, "order"))
    one = group_advantage(value, group, scale=scale)[order]
    torch.testing.assert_close(group_advantage(value[order], group[order], scale=scale), one)


def test_only_mixed_groups_within_the_bounds_are_informative():
    rates = {0: 0, 1: 1, 2: 9, 3: 5, 4: 10}  # successes out of ten
    success = torch.cat([(torch.arange(10) < count).float() for count in rates.values()])
    group = torch.arange(50) // 10
    assert informative(success, group, low=0, high=1)[::10].tolist() == [False, True, True, True, False]
    assert informative(success, group, low=0.1, high=0.9)[::10].tolist() == [False, True, True, True, False]
    assert informative(success, group, low=0.2, high=0.8)[::10].tolist() == [False, False, False, True, False]
    assert informative(success, group, low=0.2, high=0.8).reshape(5, 10).float().std(dim=1).max() == 0
