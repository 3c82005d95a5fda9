r"""A sequential comparison that spends its error budget episode by episode, exactly, whatever share of the pairs is discordant.

After ``n`` of at most ``n_max`` pairs, ``t`` are discordant (one policy alone solved them), and ``k`` of those fell to ``b``.
If neither policy is better, pairs are discordant with an unknown probability ``d`` and fall either way alike. Two policies of equal success ``p`` on initial states of their own are the case d = 2p(1-p). Let ``w(n, t, k)`` be the
probability of being there without having stopped, given ``t``; it does not depend on ``d``::

    w(n, t, k) = (1 - t/n) w(n-1, t, k) + t/n [w(n-1, t-1, k) + w(n-1, t-1, k-1)] / 2          (stopped states left out)
    C(n, t)    = (1 - t/n) C(n-1, t) + t/n C(n-1, t-1) + what stops at (n, t)                   P(stopped by n | t)
    R(n, d)    = Σ_t Binomial(t; n, d) C(n, t)                                                   P(stopped by n)

At each ``n`` states are stopped in the order of their exact two-sided p-value, as long as R(n, d) <= α n / n_max on a grid of
``d``. So a comparison of policies that mostly agree, in which few pairs are discordant, spends all of α too; the walk of
``core.statistics.sequential`` counts discordant pairs and leaves most of it unspent there.

The largest R(n_max, d) is bounded for every ``d``, not only on a grid. With d = (1 - cos φ)/2 it is a trigonometric polynomial
of degree n_max. By Bernstein's inequality it exceeds its largest value at M equal steps of [0, π] by the factor
1/(1 - (π n_max/M)²/8) at most. Where that is above α the budget is made smaller.

Fixed maximum, and a budget spent under all nulls, are the discipline of STEP (Snyder et al. 2025, arXiv:2503.10966). The rule
is not STEP's: there states count the successes of two independent policies and what stops is found by optimisation; here they
count discordant pairs, because the pairs share their initial states, and what stops is chosen greedily, without a claim to be
the best.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from worldrl.core.statistics.intervals import sps
from worldrl.core.statistics.sequential import Tally, check_maximum

Floats = NDArray[np.float64]
LARGEST_BUDGET = 500  # Most pairs that the rule is calibrated for (some ten seconds)
GRID = 200  # Steps of φ at which the budget holds while it is spent
FINE = 20
"""Steps of φ per pair at which the whole error is bounded: the bound is then 0.3 per cent above the largest value."""


@dataclass(frozen=True)
class BudgetRule:
    """When a sequential comparison of at most ``n_max`` pairs stops (:class:`~worldrl.core.statistics.sequential.StoppingRule`)."""

    name: ClassVar[str] = "budget"
    paired: ClassVar[bool] = True
    n_max: int  # most pairs, fixed beforehand
    alpha: float  # probability of stopping where neither policy is better, at most
    error: float  # bound on it, over every share of discordant pairs
    # Int64 `[n_max + 1, n_max + 1]`, smallest difference of the discordant counts that stops, by pairs and by their
    # sum; one more than the sum where none does.
    lead: NDArray[np.int64]

    def crossed(self, tally: Tally) -> bool:
        """Whether these discordant counts stop the comparison after so many pairs."""
        return bool(abs(tally.only_b - tally.only_a) >= self.lead[tally.n, tally.only_a + tally.only_b])


@lru_cache(maxsize=8)
def budget_rule(n_max: int, alpha: float = 0.05) -> BudgetRule:
    """Calibrate the rule for at most ``n_max`` pairs and ``alpha`` false alarms; SettingError out of range."""
    check_maximum(BudgetRule.name, n_max, LARGEST_BUDGET, alpha)
    lead, error = held_below(alpha, lambda budget: spend(n_max, budget))
    return BudgetRule(n_max, alpha, error, lead)


def held_below(
    alpha: float, spending: Callable[[float], tuple[NDArray[np.int64], Floats]]
) -> tuple[NDArray[np.int64], float]:
    """Make the budget smaller until the bound on the error is at most ``alpha``.

    ``spending`` makes of a budget what stops, and P(stopped by the end | successes of the null's binomial).
    """
    budget = alpha
    while True:
        stops, stopped = spending(budget)
        error = error_bound(stopped)
        if error <= alpha:
            return stops, error
        budget *= 0.999 * alpha / error


def spend(n_max: int, budget: float) -> tuple[NDArray[np.int64], Floats]:
    """Choose what stops, pair by pair: leads of :class:`BudgetRule`, and P(stopped by ``n_max`` | ``t``)."""
    share, p_value = shares(GRID), p_values(n_max)
    lead = np.tile(np.arange(n_max + 1) + 1, (n_max + 1, 1))
    alive, stopped, discordant = np.ones((1, 1)), np.zeros(1), np.ones((len(share), 1))
    for n in range(1, n_max + 1):
        alive, stopped, discordant = _walked(alive, n), one_more_seen(stopped, n), one_more_drawn(discordant, share)
        slack = budget * n / n_max - discordant @ stopped
        for t, difference, mass in _stops(
            np.where(p_value[: n + 1, : n + 1] <= budget, alive, 0.0), discordant, slack, p_value
        ):
            lead[n, t] = difference
            stopped[t] += mass
            lower = (t - difference) // 2
            alive[t, lower] = alive[t, t - lower] = 0.0
    return lead, stopped


def p_values(n_max: int) -> Floats:
    """Exact two-sided p-values of ``k`` of ``t`` discordant pairs, float64 ``[t, k]``."""
    t, k = np.indices((n_max + 1, n_max + 1))
    return np.minimum(2 * sps.binom.sf(np.maximum(k, t - k) - 1, t, 0.5), 1)


def shares(steps: int) -> Floats:
    """Shares ``d`` of discordant pairs at equal steps of φ, float64 ``[steps + 1]``."""
    return (1 - np.cos(np.linspace(0, math.pi, steps + 1))) / 2


def error_bound(stopped: Floats) -> float:
    """Bound the probability of stopping, given P(stopped by ``n_max`` | ``t``), over every share."""
    n_max = len(stopped) - 1
    steps = FINE * n_max
    largest = max(
        float((sps.binom.pmf(np.arange(n_max + 1), n_max, part[:, None]) @ stopped).max())
        for part in np.array_split(shares(steps), max(1, steps // 500))
    )
    return largest / (1 - (math.pi * n_max / steps) ** 2 / 8)


# --- one pair more -------------------------------------------------------------------------------------------------


def _walked(alive: Floats, n: int) -> Floats:
    """w(n, t, k) from w(n-1, t, k)."""
    discordant = np.arange(n + 1)[:, None] / n
    moved = np.zeros((n + 1, n + 1))
    moved[:-1, :-1] = (1 - discordant[:-1]) * alive
    moved[1:, :-1] += 0.5 * discordant[1:] * alive
    moved[1:, 1:] += 0.5 * discordant[1:] * alive
    return moved


def one_more_seen(stopped: Floats, n: int) -> Floats:
    """C(n, t) before anything stops at ``n``, from C(n-1, t)."""
    discordant = np.arange(n + 1) / n
    return (1 - discordant) * np.append(stopped, 0.0) + discordant * np.append(0.0, stopped)


def one_more_drawn(discordant: Floats, share: Floats) -> Floats:
    """Binomial(t; n, d) from Binomial(t; n-1, d), float64 ``[D, n + 1]``."""
    drawn = np.zeros((len(share), discordant.shape[1] + 1))
    drawn[:, :-1] = (1 - share[:, None]) * discordant
    drawn[:, 1:] += share[:, None] * discordant
    return drawn


def _stops(telling: Floats, discordant: Floats, slack: Floats, p_value: Floats) -> list[tuple[int, int, float]]:
    """States ``(t, difference, P(there | t))`` that stop now, both signs at once; ``slack`` is what may be spent by ``d``."""
    found: list[tuple[int, int, float]] = []
    full: set[int] = set()
    for t, difference in _candidates(telling, p_value):
        if t in full:
            continue
        mass = float(telling[t, (t - difference) // 2] + telling[t, (t + difference) // 2])
        cost = discordant[:, t] * mass
        if np.any(cost > slack):
            full.add(t)  # what is closer to a tie continues with it
            continue
        slack = slack - cost
        found.append((t, difference, mass))
    return found


def _candidates(telling: Floats, p_value: Floats) -> list[tuple[int, int]]:
    """Totals and positive differences of the states that are still reached, the most significant first."""
    t, k = np.nonzero(telling)
    t, k = t[2 * k > t], k[2 * k > t]
    return [(int(t[at]), int(2 * k[at] - t[at])) for at in np.lexsort((t, p_value[t, k]))]
