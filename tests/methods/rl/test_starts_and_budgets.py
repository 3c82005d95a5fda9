"""Start samplers and budget allocators by their equations, from records that are known by heart."""

import itertools

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.methods.rl.budgets import equal_treatment, hardness_weighted, knapsack, root_variance, shrinking_interval
from worldrl.methods.rl.records import RECENT, StartRecords
from worldrl.methods.rl.starts import difficulty_bins, hardest, self_evolving_curriculum

ALL = torch.arange(4)


def known(wins, losses):
    made = StartRecords(["PickRedCube"] * len(wins), [False] * len(wins), counts=True)
    made.wins, made.losses = (torch.tensor(count, dtype=torch.float64) for count in (wins, losses))
    return made


EIGHTS = known([0, 3, 15, 29], [30, 27, 15, 1])
"""Rates of success 1/32, 4/32, 16/32, 30/32."""


def value(size, rate):
    return (1 - rate**size - (1 - rate) ** size) * rate * (1 - rate) ** 2


def test_a_knapsack_is_the_best_of_all_shares():
    sizes = knapsack(EIGHTS, ALL, 20)
    rates = [1 / 32, 1 / 8, 1 / 2, 15 / 16]
    shares = [s for s in itertools.product(range(2, 15), repeat=4) if sum(s) == 20]
    best = max(shares, key=lambda s: sum(value(n, p) for n, p in zip(s, rates, strict=True)))
    assert sizes.tolist() == list(best)
    assert sizes[1] > sizes[2] > sizes[3]  # the value peaks near one third, a certain start keeps its two


def test_hard_starts_get_as_much_gradient_as_even_ones_or_more():
    """4 rates: S(p) = 2 p (1 - p); weights 1 / (4 p (1 - p)), at most 4; and 1 / (2 p), at most 4."""
    records = known([3, 7, 15, 29], [27, 23, 15, 1])  # 1/8, 1/4, 1/2, 15/16
    weight = torch.tensor([16 / 7, 4 / 3, 1.0, 1.0])
    assert equal_treatment(records, ALL, 8 + 1000).tolist() == (2 + (1000 * weight / weight.sum())).round().tolist()
    weight = torch.tensor([4.0, 2.0, 1.0, 1.0])
    assert hardness_weighted(records, ALL, 8 + 800).tolist() == (2 + 800 * weight / weight.sum()).tolist()
    assert equal_treatment(EIGHTS, ALL, 8 + 700).tolist()[0] == 2 + round(700 * 4 / (4 + 16 / 7 + 2))


def test_the_next_rollout_goes_where_the_interval_shrinks_most():
    even = known([0, 50, 0, 0], [0, 50, 0, 100])
    sizes = shrinking_interval(even, ALL, 24)
    assert sizes.sum() == 24
    assert sizes[0] == sizes[2] > sizes[1] == sizes[3] == 2  # nothing is known of two of them


@pytest.mark.parametrize("allocate", [root_variance, knapsack, shrinking_interval, equal_treatment, hardness_weighted])
def test_every_start_gets_two_and_nothing_is_lost(allocate):
    sizes = allocate(EIGHTS, ALL, 37)
    assert sizes.sum() == 37
    assert sizes.min() >= 2
    with pytest.raises(SettingError, match=f"parts.budget={allocate.__name__} needs two rollouts of each of 4 starts"):
        allocate(EIGHTS, ALL, 7)


def test_the_hardest_quarter_is_drawn():
    records = known([9, 0, 5, 8, 1, 7, 6, 9], [1, 10, 5, 2, 9, 3, 4, 1])
    drawn = {int(i) for k in range(20) for i in hardest(records, 3, stream(0, "hardest", k))}
    assert drawn == {1, 4}


def test_bins_of_difficulty_are_drawn_by_their_failures():
    """Two bins: mean failure 31/32 and 1/32; q ∝ 0.9 exp(2 S) / Σ + 0.05, then alike within the bin."""
    records = known([0, 0, 0, 30], [30, 30, 30, 0])
    drawn = difficulty_bins(records, 20_000, stream(0, "bins"))
    share = drawn.bincount(minlength=4) / 20_000
    odds = torch.tensor([31 / 16, 1 / 16]).softmax(0)
    wanted = 0.9 * odds + 0.05
    assert share[3].item() == pytest.approx(wanted[1].item(), abs=0.01)
    assert share[:3].tolist() == pytest.approx([wanted[0].item() / 3] * 3, abs=0.01)


# -- a curriculum over tasks -----------------------------------------------------------------------------------------


def two_tasks(**over):
    return StartRecords(
        ["Open", "Pick", "Open", "Pick", "Pick"], [False, False, True, False, True], counts=True, **over
    )


def test_a_tasks_learning_gain_is_the_mean_size_of_its_groups_advantages():
    """Standardised, 2 of 8 successes give 2 advantages of √3 and 6 of -1/√3: mean 2 √(1/4 · 3/4) = √3 / 2."""
    records, first = two_tasks(), (1 - RECENT) + RECENT * 3**0.5 / 2
    assert records.gain == {"Open": 1.0, "Pick": 1.0}
    records.learn(torch.tensor([1, 3]), torch.tensor([2.0, 8.0]), torch.tensor([8.0, 8.0]))
    assert records.gain == {"Open": 1.0, "Pick": pytest.approx((1 - RECENT) * first)}
    again, earlier = two_tasks(), two_tasks()
    again.load_state_dict(records.state_dict())
    assert again.gain == records.gain
    earlier.load_state_dict({name: records.state_dict()[name] for name in ("wins", "losses")})
    assert earlier.gain == two_tasks().gain


def test_a_curriculum_draws_tasks_by_what_they_teach_and_starts_alike():
    records = two_tasks()
    records.gain |= {"Open": 0.1, "Pick": 0.7}
    share = self_evolving_curriculum(records, 20_000, stream(0, "sec")).bincount(minlength=5) / 20_000
    odds = torch.tensor([0.1 / 0.3, 0.7 / 0.3]).softmax(0).tolist()
    assert share.tolist() == pytest.approx([odds[0], odds[1] / 2, 0, odds[1] / 2, 0], abs=0.012)
    records.p_keyframe = 1.0
    assert set(self_evolving_curriculum(records, 200, stream(0, "sec")).tolist()) == {2, 4}
