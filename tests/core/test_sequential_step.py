"""Unit under test: ``core/sequential_step.py``; against a recursion in p, a fixed Barnard test and the authors' decisions."""

import itertools
from functools import lru_cache

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import sps
from worldrl.core.statistics.sequential import Tally, decide
from worldrl.core.statistics.sequential_step import step_rule


def of_step(rule):
    def crossed(n, a, b):
        least, most = np.minimum(a, b), np.maximum(a, b)
        return (most <= n) & (most >= rule.needed[n][np.minimum(least, n)])

    return crossed


def rates(a, b, correlation=0.0):
    """Moves of two policies of these success rates, of independent episodes unless a correlation is given."""
    a, b = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float))
    both = a * b + correlation * np.sqrt(a * (1 - a) * b * (1 - b))
    return {(1, 1): both, (1, 0): a - both, (0, 1): b - both}


def region(rule, n):
    """Successes of a and b ``[n + 1, n + 1]`` that stop after n episodes with b ahead."""
    a, b = np.indices((n + 1, n + 1))
    return (b > a) & of_step(rule)(n, a, b)


@lru_cache
def barnard(n, alpha):
    """Two-sided fixed test of n against n: the largest level of the pooled z-value whose error stays below alpha for every p."""
    a, b = np.indices((n + 1, n + 1))
    pooled = (a + b) / (2 * n)
    z = np.abs(a - b) / np.sqrt(np.maximum(2 * n * pooled * (1 - pooled), 1e-12))
    mass = sps.binom.pmf(np.arange(n + 1), n, np.linspace(0.002, 0.5, 100)[:, None])
    rejected = np.zeros((n + 1, n + 1), bool)
    for level in np.unique(z.round(9))[::-1]:
        wider = z >= level - 1e-9
        if np.einsum("pa,pb,ab->p", mass, mass, wider).max() > alpha:
            return rejected
        rejected = wider
    return rejected


@pytest.mark.parametrize(("n_max", "alpha"), [(1, 0.05), (6, 0.3), (20, 0.05), (50, 0.1), (100, 0.05), (60, 0.01)])
def test_the_error_stays_below_alpha_for_every_success_rate(n_max, alpha, play):
    rule = step_rule(n_max, alpha)
    p = np.linspace(0, 0.5, 137)  # mostly not the points at which the budget was spent
    stopped = play(n_max, rates(p, p), of_step(rule))[0].sum(0)
    assert stopped[-1].max() <= rule.error <= alpha
    spent = np.arange(1, n_max + 1)[:, None] / n_max * alpha
    assert (stopped <= 1.005 * spent).all()  # while it is spent, it is held on a grid of coarser steps
    if n_max >= 20:
        assert np.median(stopped[-1]) > 0.9 * alpha  # all of it is used, at hard and easy tasks alike


def test_who_is_not_better_is_found_better_half_as_often_at_most(play):
    """The null has unequal rates, too: what stops being nested, none of them is worse than the equal ones."""
    rule, rate = step_rule(40, 0.1), np.linspace(0.02, 0.98, 17)
    a, b = (grid[grid_a >= grid_b] for grid_a, grid_b in [np.meshgrid(rate, rate)] for grid in (grid_a, grid_b))
    (_, wrong), _ = play(40, rates(a, b), of_step(rule))
    (_, equal), _ = play(40, rates(b, b), of_step(rule))
    assert wrong[-1].max() <= 0.05
    assert (wrong[-1] <= equal[-1] + 1e-12).all()


@pytest.mark.parametrize("n_max", [12, 60])
def test_what_stops_is_nested_and_alike_for_either_policy_and_for_failures(n_max):
    rule = step_rule(n_max)
    assert any(region(rule, n).any() for n in range(n_max + 1))
    for n in range(1, n_max + 1):
        stops = region(rule, n)
        assert (stops[:, 1:] >= stops[:, :-1])[np.triu_indices(n + 1, 0, n)].all()  # b solved one more
        assert (stops[:-1] >= stops[1:]).all()  # a solved one less
        assert (stops == stops[::-1, ::-1].T).all()  # successes and failures exchanged
        for both, only_a, only_b in [(0, 2, n - 2), (1, 0, n - 1), (0, 0, n)]:
            assert rule.crossed(Tally(n, both, only_a, only_b)) == rule.crossed(Tally(n, both, only_b, only_a))


def test_decisions_are_those_of_the_table_by_enumeration(play):
    rule, p, total = step_rule(6, 0.3), 0.6, 0.0
    for a, b in itertools.product(itertools.product([False, True], repeat=6), repeat=2):
        found = decide(a, b, rule)
        solved = sum(a) + sum(b)
        total += (found["verdict"] != "not decided") * p**solved * (1 - p) ** (12 - solved)
        assert found.keys() == {"rule", "n_max", "n", "solved_a", "solved_b", "alpha", "verdict"}
        if found["verdict"] == "b is better":
            assert found["solved_b"] > found["solved_a"]
            assert decide(b, a, rule) == found | {
                "verdict": "a is better",
                "solved_a": found["solved_b"],
                "solved_b": found["solved_a"],
            }
    stopped, _ = play(6, rates([p], [p]), of_step(rule))
    assert total == pytest.approx(float(stopped[:, -1, 0].sum()))
    assert 0.1 < total <= 0.3


@pytest.mark.parametrize(("a", "b"), [(0.28, 0.8), (0.4, 0.6), (0.1, 0.3), (0.5, 0.75), (0.05, 0.2), (0.8, 0.95)])
def test_it_finds_almost_what_a_fixed_test_finds_and_sooner(a, b, play):
    n, alpha = 60, 0.05
    (_, found), episodes = play(n, rates([a], [b]), of_step(step_rule(n, alpha)))
    solved = np.arange(n + 1)
    rejected = barnard(n, alpha) & (solved > solved[:, None])
    fixed = sps.binom.pmf(solved, n, a) @ rejected @ sps.binom.pmf(solved, n, b)
    assert found[-1, 0] > fixed - 0.1
    assert episodes[0] < 0.85 * n


@pytest.mark.parametrize(
    ("n_max", "before", "at"),
    [
        (50, (7, 7, 2), (8, 8, 2)),
        (200, (8, 8, 2), (9, 9, 2)),
        (50, (18, 17, 11), (19, 18, 11)),
        (200, (20, 19, 11), (21, 20, 11)),
        pytest.param(500, (22, 21, 12), (23, 22, 12), marks=pytest.mark.slow),
    ],
)
def test_the_authors_robots_are_distinguished_after_as_many_episodes_as_they_say(n_max, before, at):
    """Their decisions on CleanUpSpill (two policies, 40 and 14 of 50) after 8 and 9 trials of a maximum of 50 and 200, and on
    FoldRedTowel (46 and 28 of 50) after 19, 21 and 23 of 50, 200 and 500, at 5 % a direction: tests of their repository,
    TRI-ML/sequentialized_barnard_tests. At a maximum of 500 they find CleanUpSpill after 13, we after 9: their programme begins
    after log2(n_max) trials."""
    rule = step_rule(n_max, 0.1)
    (seen, more, less), (n, best, least) = before, at
    assert not rule.crossed(Tally(seen, less, more - less, 0))
    assert rule.crossed(Tally(n, least, 0, best - least))


@pytest.mark.parametrize(
    ("a", "b", "power", "episodes"), [(0.28, 0.8, 1.0, 13.6), (0.56, 0.92, 0.993, 18.8), (0.4, 0.6, 0.571, 38.0)]
)
def test_it_is_as_good_as_the_authors_own_rule(a, b, power, episodes, play):
    """Power and mean trials of their published rule for 50 trials and 5 % a direction, computed once from its tables, which draw
    lots at 444 of their states."""
    (_, found), needed = play(50, rates([a], [b]), of_step(step_rule(50, 0.1)))
    assert found[-1, 0] > power - 0.015
    assert needed[0] < episodes + 0.1


def test_pairs_on_shared_states_can_break_it(play):
    """Where one policy is good at what the other is bad at, false alarms exceed alpha: the rule is for independent episodes."""
    rule = step_rule(50)
    opposed, alike = (play(50, rates([0.5], [0.5], c), of_step(rule))[0][:, -1].sum() for c in (-0.8, 0.8))
    assert opposed > 2 * 0.05
    assert alike < 0.01


def test_sizes_out_of_range_are_refused():
    with pytest.raises(SettingError, match="step: needs 1 <= n_max <= 500"):
        step_rule(501)
    with pytest.raises(SettingError, match="0 < alpha < 1"):
        step_rule(10, 1.0)
