r"""STEP: a sequential comparison of two policies on initial states of their own, its maximum fixed beforehand.

Snyder et al. 2025, "Is Your Imitation Learning Policy Better than Mine? Policy Comparison with Near-Optimal Stopping"
(arXiv:2503.10966). After ``n`` of at most ``n_max`` episodes of each policy the state is ``(n, a, b)``, the successes of either.
Neither being better means that both succeed with the same unknown ``p``; then the ``s = a + b`` successes lie anywhere among the
2n episodes alike. Let ``w(n, a, b)`` be the probability of being there without having stopped, given ``s``; it does not depend on
``p``::

    w(n, a, b) = P00 w(n-1, a, b) + P11 w(n-1, a-1, b-1) + P10 [w(n-1, a-1, b) + w(n-1, a, b-1)]    (stopped states left out)
    P00 = (2n-s)(2n-s-1) / D      P11 = s(s-1) / D      P10 = s(2n-s) / D      D = 2n(2n-1)
    C(n, s)    = what has stopped before, carried on alike, + what stops at (n, s)                    P(stopped by n | s)
    R(n, p)    = Σ_s Binomial(s; 2n, p) C(n, s)                                                       P(stopped by n)

R(n, p) may rise to the budget α n / n_max and no further, for each ``p`` of a grid. What stops at ``n`` is found by the paper's
linear programme: a weight in [0, 1] for each state, one for (a, b) and (n-b, n-a) and for both directions, so that as many states
as possible stop within the budget. (Were both rates drawn uniformly and had nothing stopped before, each state would be as
probable as any other.) Two things are not the paper's:

- It draws lots where a weight is a fraction. Here the states stop in the order of their weights, the outermost first among
  equals, as long as the budget lasts, and what is left is for later; so a comparison can be repeated.
- A state may stop only if (a-1, b) and (a, b+1) stop, written into the programme and kept by the rounding. Take away successes
  from ``a`` or give some to ``b``, and a comparison that found ``b`` better still does, no later. So where ``b`` is not better, of
  whatever rates, it is found to be with probability R(n_max, p) / 2 at most, at the ``p`` of either.

``alpha`` counts both directions; theirs counts one, so that their 5 % is 0.1 here. R(n_max, p) is bounded between the points of the
grid as in ``core.statistics.sequential_budget``. Versions of the solver may return different ones of several best solutions; none of this
depends on which.

The episodes must be independent and of one success rate each: one task, initial states of its own for each policy. Pairs that share
their initial states are not: with correlation ρ the difference of two has the variance 2p(1-p)(1-ρ). Where one policy is better
on some states and the other on others, ρ < 0 and α is exceeded; where the states make them agree, ρ > 0 and most of it lies idle.
Rules for pairs count discordant ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worldrl.core.lookup import Lazy
from worldrl.core.statistics.sequential import Tally, check_maximum
from worldrl.core.statistics.sequential_budget import GRID, Floats, held_below, one_more_drawn, one_more_seen, shares

optimize: Any = Lazy("scipy.optimize")
LARGEST_STEP = 500  # Most episodes of each policy that the rule is calibrated for (some fifteen seconds of a core)
BEFORE_THE_BOUND = 0.9965
"""Share of α with which the budget begins: the bound lies 0.3 per cent above the largest value, and the programme spends all."""


@dataclass(frozen=True)
class StepRule:
    """When a comparison of at most ``n_max`` episodes of each policy stops (:class:`~worldrl.core.statistics.sequential.StoppingRule`)."""

    name: ClassVar[str] = "step"
    paired: ClassVar[bool] = False
    n_max: int  # most episodes of each, fixed beforehand
    alpha: float  # probability of stopping where both have the same success rate, at most
    error: float  # bound on it, over every success rate
    # Int64 `[n_max + 1, n_max + 1]`, fewest successes of one policy that stop, by episodes and by the successes of the
    # other; one more than the episodes where none do.
    needed: NDArray[np.int64]

    def crossed(self, tally: Tally) -> bool:
        """Whether these successes stop the comparison after so many episodes of each."""
        less, more = sorted((tally.only_a, tally.only_b))
        return bool(tally.both + more >= self.needed[tally.n, tally.both + less])


@lru_cache(maxsize=8)
def step_rule(n_max: int, alpha: float = 0.05) -> StepRule:
    """Calibrate the rule for ``n_max`` episodes of each and ``alpha`` false alarms either way; SettingError."""
    check_maximum(StepRule.name, n_max, LARGEST_STEP, alpha)
    needed, error = held_below(alpha, lambda budget: spend(n_max, BEFORE_THE_BOUND * budget))
    return StepRule(n_max, alpha, error, needed)


def spend(n_max: int, budget: float) -> tuple[NDArray[np.int64], Floats]:
    """Choose what stops: :class:`StepRule`'s ``needed``, and P(stopped by ``n_max`` | ``s``), ``[2 n_max + 1]``."""
    rate = shares(GRID)[: GRID // 2 + 1]  # p and 1 - p are alike
    needed = np.tile(np.arange(n_max + 1)[:, None] + 1, (1, n_max + 1))
    alive, stopped, successes = np.ones((1, 1)), np.zeros(1), np.ones((len(rate), 1))
    for n in range(1, n_max + 1):
        alive = _walked(alive, n)
        for episodes in (2 * n - 1, 2 * n):
            stopped, successes = one_more_seen(stopped, episodes), one_more_drawn(successes, rate)
        stops = _stops(alive, successes, budget * n / n_max - successes @ stopped)
        needed[n, : n + 1] -= stops.sum(1)  # with (a, b), (a, b+1) stops, too
        stops |= stops.T
        stopped += _by_sum(np.where(stops, alive, 0.0))
        alive[stops] = 0.0
    return needed, stopped


def _walked(alive: Floats, n: int) -> Floats:
    """w(n, a, b) from w(n-1, a, b)."""
    s, trials = np.indices((n + 1, n + 1)).sum(0), 2 * n
    neither, both, one = (trials - s) * (trials - s - 1), s * (s - 1), s * (trials - s)
    moved = np.zeros((n + 1, n + 1))
    moved[:-1, :-1] += neither[:-1, :-1] * alive
    moved[1:, 1:] += both[1:, 1:] * alive
    moved[1:, :-1] += one[1:, :-1] * alive
    moved[:-1, 1:] += one[:-1, 1:] * alive
    return moved / (trials * (trials - 1))


def _by_sum(table: Floats) -> Floats:
    sums = np.zeros(2 * len(table) - 1)
    np.add.at(sums, np.indices(table.shape).sum(0), table)
    return sums


# --- what stops after n episodes -----------------------------------------------------------------------------------


class _Class(NamedTuple):
    """States that stop together or not at all."""

    states: frozenset[tuple[int, int]]  # (a, b) with b > a, and (n-b, n-a) where that is another
    cost: Floats  # P(there at n), both directions, float64 `[P]` by `p`
    outer: tuple[int, ...]  # which classes must stop with it


def _stops(alive: Floats, successes: Floats, slack: Floats) -> NDArray[np.bool_]:
    """States with b > a that stop now, bool ``[n + 1, n + 1]``; ``slack`` is what may be spent by ``p``."""
    stops = np.triu(alive == 0, 1)  # what is reached no more lies outside of all that is
    classes = _affordable(alive, successes, slack, stops)
    for number in _rounded(classes, _weights(classes, slack), slack) if classes else ():
        for state in classes[number].states:
            stops[state] = True
    return stops


def _affordable(alive: Floats, successes: Floats, slack: Floats, stops: NDArray[np.bool_]) -> list[_Class]:
    """Classes that fit into the budget alone, with all that must stop with them among them; the outermost first."""
    n, found = len(alive) - 1, list[_Class]()
    number: dict[tuple[int, int], int] = {}
    for lead in range(n, 0, -1):
        for a in range((n - lead) // 2 + 1):  # a + b <= n, the others by reflection
            b = a + lead
            further = [at for at in ((a - 1, b), (a, b + 1)) if at[0] >= 0 and at[1] <= n and not stops[at]]
            if stops[a, b] or any(at not in number for at in further):
                continue
            states = frozenset({(a, b), (n - b, n - a)})
            cost = 2 * np.sum([successes[:, x + y] * alive[x, y] for x, y in states], axis=0)
            if np.all(cost <= slack):
                number |= dict.fromkeys(states, len(found))
                found.append(_Class(states, cost, tuple(number[at] for at in further)))
    return found


def _weights(classes: Sequence[_Class], slack: Floats) -> Floats:
    """Solve the linear programme: the most states within the budget, none without those further out."""
    within = np.stack([each.cost for each in classes], axis=1)
    pairs = [(inner, outer) for inner, each in enumerate(classes) for outer in each.outer]
    nested = np.zeros((len(pairs), len(classes)))
    for row, (inner, outer) in enumerate(pairs):
        nested[row, inner], nested[row, outer] = 1.0, -1.0
    scale = slack.max()  # the solver's tolerances are absolute
    found = optimize.linprog(
        [-len(each.states) for each in classes],
        A_ub=np.concatenate([within / scale, nested]),
        b_ub=np.concatenate([np.maximum(slack, 0) / scale, np.zeros(len(pairs))]),
        bounds=(0, 1),
        method="highs",
    )
    if found.x is None:
        raise ArithmeticError(f"step: the linear programme of {len(classes)} classes has no solution: {found.message}")
    return np.asarray(found.x, dtype=np.float64)


def _rounded(classes: Sequence[_Class], weight: Floats, slack: Floats) -> set[int]:
    """Which classes stop: those of the largest weights that the budget allows in whole."""
    chosen: set[int] = set()
    for number in sorted(range(len(classes)), key=lambda number: (-round(float(weight[number]), 6), number)):
        each = classes[number]
        if chosen.issuperset(each.outer) and np.all(each.cost <= slack):
            slack = slack - each.cost
            chosen.add(number)
    return chosen
