"""Unit under test: ``core/sequential_budget.py``; its error by recursions and enumerations that do not share its formulas."""

import itertools

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import mcnemar
from worldrl.core.statistics.sequential import boundary, decide
from worldrl.core.statistics.sequential_budget import budget_rule, error_bound, p_values


def of_budget(rule):
    return lambda n, a, b: (a + b <= n) & (np.abs(b - a) >= rule.lead[n][np.minimum(a + b, rule.n_max)])


def of_pocock(rule):
    return lambda n, a, b: (a + b <= n) & (np.abs(b - a) >= rule.lead[np.minimum(a + b, rule.n_max)])


def discordant(only_a, only_b):
    return {(1, 0): only_a, (0, 1): only_b}


@pytest.mark.parametrize(("n_max", "alpha"), [(1, 0.05), (7, 0.2), (20, 0.05), (45, 0.01), (60, 0.05), (100, 0.1)])
def test_the_error_stays_below_alpha_for_equal_policies_whatever_their_success(n_max, alpha, play):
    rule = budget_rule(n_max, alpha)
    success = np.linspace(0, 0.5, 51)  # p and 1 - p are alike
    independent = success * (1 - success)  # on initial states of their own
    stopped = play(n_max, discordant(independent, independent), of_budget(rule))[0].sum(0)
    assert stopped.max() <= alpha
    spent = np.arange(1, n_max + 1)[:, None] / n_max * alpha
    assert (stopped <= 1.01 * spent).all()  # while it is spent, it is held on a grid of coarser steps
    shared = np.linspace(0.25, 0.5, 26)  # shared states may be harder on one at a time than independence allows
    stopped_shared = play(n_max, discordant(shared, shared), of_budget(rule))[0].sum(0)
    assert max(stopped.max(), stopped_shared.max()) <= rule.error <= alpha
    if n_max >= 20:
        assert max(stopped.max(), stopped_shared.max()) > 0.9 * alpha  # and most of it is used


def test_the_bound_holds_between_the_grids_points_too():
    stopped = np.zeros(31)
    stopped[17] = 1.0  # as sharp as a polynomial of this degree gets
    share = np.linspace(0, 1, 100_001)
    stopping = 119759850 * share**17 * (1 - share) ** 13
    assert stopping.max() <= error_bound(stopped) < 1.01 * stopping.max()


def test_decisions_are_those_of_the_table_by_enumeration(play):
    rule, kinds = budget_rule(8, 0.3), ((False, False), (True, False), (False, True))
    d, total = 0.7, 0.0
    for sequence in itertools.product(range(3), repeat=8):
        a, b = zip(*(kinds[kind] for kind in sequence), strict=True)
        chance = np.prod([(1 - d, d / 2, d / 2)[kind] for kind in sequence])
        found = decide(a, b, rule)
        total += chance * (found["verdict"] != "not decided")
        assert found["rule"] == "budget"
    stopped, _ = play(8, discordant([d / 2], [d / 2]), of_budget(rule))
    assert total == pytest.approx(float(stopped[:, -1, 0].sum()))
    assert 0.1 < total <= 0.3


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(0.175, 0.325), (0.09, 0.21), (0.05, 0.15), (0.01, 0.09), (0.5 * 0.3, 0.7 * 0.5)]
)
def test_it_finds_more_and_sooner_than_a_constant_nominal_level(only_a, only_b, play):
    n_max = 120
    moves = discordant([only_a], [only_b])
    found, pairs = play(n_max, moves, of_budget(budget_rule(n_max)))
    pocock, pocock_pairs = play(n_max, moves, of_pocock(boundary(n_max)))
    assert found[:, -1, 0].sum() > pocock[:, -1, 0].sum() + 0.03
    assert pairs[0] < pocock_pairs[0]


def test_what_stops_is_a_lead_and_significant():
    rule = budget_rule(40)
    reached = rule.lead <= np.arange(41)
    assert reached.any()
    assert not np.triu(reached, 1).any()  # more discordant pairs than pairs there cannot be
    for n, t in zip(*np.nonzero(reached), strict=True):
        lead = int(rule.lead[n, t])
        assert lead > 0
        assert (t - lead) % 2 == 0
        assert mcnemar((t - lead) // 2, (t + lead) // 2) <= 0.05
    assert p_values(9)[9, 7] == pytest.approx(mcnemar(2, 7))


def test_sizes_out_of_range_are_refused():
    with pytest.raises(SettingError, match="budget: needs 1 <= n_max <= 500"):
        budget_rule(501)
    with pytest.raises(SettingError, match="0 < alpha < 1"):
        budget_rule(10, 0.0)
