"""Two policies compared while the episodes still come in, and how many episodes a comparison needs.

The test counts discordant pairs, which one policy solved and the other did not. Where neither is better each falls
either way with probability 1/2, so the difference of their counts is a symmetric walk, and a false alarm's chance is
exact. It stops where the exact binomial p-value falls to a *nominal level*: the largest at which a walk of at most
``n_max`` steps, fixed beforehand, ever stops with probability ``alpha`` at most.

The discipline is that of STEP, Snyder et al. 2025 (arXiv:2503.10966); the boundary of constant nominal level is
Pocock's, Biometrika 64 (1977), because the pairs share their initial states. ``sequential_budget`` has a second rule
for pairs, ``sequential_step`` is STEP itself. Sample sizes: Miettinen, Biometrics 24 (1968), computed exactly. Shapes:
``D`` discordant pairs, ``N`` episodes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, NotRequired, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import sps

Verdict = Literal["a is better", "b is better", "not decided"]
LARGEST, LARGEST_TEST = 20_000, 5_000
"""Most episodes that a plan considers, and that a sequential test is calibrated for (a few seconds)."""


class Tally(NamedTuple):
    """Episodes of each policy so far, counted two by two in their order: how many both, only A and only B solved."""

    n: int = 0
    both: int = 0
    only_a: int = 0
    only_b: int = 0


class StoppingRule(Protocol):
    """A sequential test with its maximum fixed beforehand."""

    name: ClassVar[str]
    paired: ClassVar[bool]
    """Whether it is of pairs that share their initial states, so that discordant ones mean something."""

    @property
    def n_max(self) -> int:
        """Most episodes of each policy."""
        ...

    @property
    def alpha(self) -> float:
        """Probability of stopping where neither policy is better, at most."""
        ...

    def crossed(self, tally: Tally) -> bool:
        """Whether these counts stop the comparison."""
        ...


class Decision(TypedDict):
    """Where a comparison stands after ``n`` episodes of each policy; ``only_*`` are of a rule of pairs."""

    rule: str
    n_max: int
    n: int
    solved_a: int
    solved_b: int
    only_a: NotRequired[int]
    only_b: NotRequired[int]
    alpha: float
    verdict: Verdict


@dataclass(frozen=True)
class Boundary:
    """When a sequential comparison of at most ``n_max`` pairs stops (:class:`StoppingRule`)."""

    name: ClassVar[str] = "pocock"
    paired: ClassVar[bool] = True
    n_max: int  # most pairs, fixed beforehand
    alpha: float  # probability of stopping where neither policy is better, at most
    nominal: float  # two-sided p-value at which it stops
    # Int64 `[n_max + 1]`, smallest difference of the discordant counts that stops, by their sum; one more than the sum
    # where none does.
    lead: NDArray[np.int64]

    def crossed(self, tally: Tally) -> bool:
        """Whether these discordant counts stop the comparison, after however many pairs."""
        return bool(abs(tally.only_b - tally.only_a) >= self.lead[tally.only_a + tally.only_b])


def check_maximum(rule: str, n_max: int, largest: int, alpha: float) -> None:
    """SettingError for what a rule cannot be calibrated for."""
    if not 1 <= n_max <= largest or not 0 < alpha < 1:
        raise SettingError(f"{rule}: needs 1 <= n_max <= {largest} and 0 < alpha < 1, got {n_max} and {alpha}")


def leads(n_max: int, nominal: float) -> NDArray[np.int64]:
    """Smallest difference of two counts whose exact two-sided p-value is at most ``nominal``, by their sum ``0..n_max``."""
    total = np.arange(n_max + 1)
    # P(X >= k) <= nominal / 2: isf is the smallest k whose survival function is at most that, so k + 1 is needed.
    most = sps.binom.isf(nominal / 2, total, 0.5).astype(np.int64) + 1
    return np.minimum(2 * most - total, total + 1)


def false_alarm(lead: NDArray[np.int64], share: float = 0.5) -> NDArray[np.float64]:
    """Probability that a walk stops at each number of discordant pairs ``[D + 1]``; ``share`` falls to ``b``."""
    largest = len(lead) - 1
    alive = np.zeros(2 * largest + 3)  # by difference, shifted by the middle
    middle = largest + 1
    alive[middle] = 1.0
    difference = np.arange(len(alive)) - middle
    stops = np.zeros(largest + 1)
    for pairs in range(1, largest + 1):
        moved = np.zeros_like(alive)
        moved[1:] += share * alive[:-1]
        moved[:-1] += (1 - share) * alive[1:]
        out = np.abs(difference) >= lead[pairs]
        stops[pairs] = moved[out].sum()
        moved[out] = 0.0
        alive = moved
    return stops


@lru_cache(maxsize=8)
def boundary(n_max: int, alpha: float = 0.05) -> Boundary:
    """Calibrate the test for at most ``n_max`` pairs and ``alpha`` false alarms; SettingError out of range."""
    check_maximum("sequential", n_max, LARGEST_TEST, alpha)
    low, high = 0.0, alpha  # the level is found by halving: a false alarm grows with it
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if false_alarm(leads(n_max, middle)).sum() <= alpha else (low, middle)
    return Boundary(n_max, alpha, low, leads(n_max, low))


def decide(a: Sequence[bool], b: Sequence[bool], rule: StoppingRule) -> Decision:
    """Compare two policies on the episodes so far, in an order fixed beforehand, up to the first at which it stops.

    Success of A and of B per episode, the same ones for a rule of pairs. SettingError for different lengths, or more
    than the rule's maximum.
    """
    if len(a) != len(b) or len(a) > rule.n_max:
        raise SettingError(f"sequential: {len(a)} and {len(b)} episodes; needs equally many, at most {rule.n_max}")
    tally = Tally()
    verdict: Verdict = "not decided"
    for first, second in zip(map(bool, a), map(bool, b), strict=True):
        only_a, only_b = tally.only_a + (first and not second), tally.only_b + (second and not first)
        tally = Tally(tally.n + 1, tally.both + (first and second), only_a, only_b)
        if rule.crossed(tally):
            verdict = "b is better" if tally.only_b > tally.only_a else "a is better"
            break
    decision: Decision = {
        "rule": rule.name,
        "n_max": rule.n_max,
        "n": tally.n,
        "solved_a": tally.both + tally.only_a,
        "solved_b": tally.both + tally.only_b,
        "alpha": rule.alpha,
        "verdict": verdict,
    }
    if rule.paired:
        decision["only_a"], decision["only_b"] = tally.only_a, tally.only_b
    return decision


# --- how many episodes ---------------------------------------------------------------------------------------------


def unpaired_episodes(rate: float, diff: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Episodes of each policy, on different initial states, that show ``rate`` against ``rate + diff``.

    Normal approximation, pooled variance under no difference (Fleiss, Statistical Methods for Rates, ch. 4).
    """
    if not 0 < rate < 1 or not diff > 0 or rate + diff > 1:
        raise SettingError(f"plan: needs 0 < rate < 1, diff > 0 and rate + diff <= 1, got rate={rate}, diff={diff}")
    other, middle = rate + diff, rate + diff / 2
    error = float(sps.norm.ppf(1 - alpha / 2)) * math.sqrt(2 * middle * (1 - middle))
    miss = float(sps.norm.ppf(power)) * math.sqrt(rate * (1 - rate) + other * (1 - other))
    return math.ceil(((error + miss) / diff) ** 2)


def discordant_share(rate: float, diff: float) -> float:
    """Share of episodes that exactly one of two policies solves, where they succeed independently of each other."""
    other = rate + diff
    return max(rate * (1 - other) + other * (1 - rate), diff)  # rounding would put it a hair below at other = 1


def paired_power(n: int, share: float, diff: float, *, alpha: float = 0.05) -> float:
    """Probability that exact McNemar finds ``diff`` = ``rate(b) - rate(a)`` in ``n`` pairs, ``share`` discordant."""
    discordant = np.arange(n + 1)
    wins_needed = sps.binom.isf(alpha / 2, discordant, 0.5) + 1
    found = sps.binom.sf(wins_needed - 1, discordant, (share + diff) / (2 * share))
    return float(np.sum(sps.binom.pmf(discordant, n, share) * found))


def paired_episodes(share: float, diff: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Fewest pairs at which exact McNemar has the power; SettingError over ``LARGEST`` or for a small share."""
    if not 0 < diff <= share <= 1:
        raise SettingError(f"plan: needs 0 < diff <= discordant share <= 1, got diff={diff} and {share}")
    low, high = 1, 2
    while paired_power(high, share, diff, alpha=alpha) < power:
        low, high = high, 2 * high
        if high > LARGEST:
            raise SettingError(f"plan: diff={diff} needs more than {LARGEST} episodes; ask for a larger difference")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if paired_power(middle, share, diff, alpha=alpha) >= power else (middle, high)
    return high


class SequentialPlan(TypedDict):
    """A sequential comparison: the maximum to be fixed, and episodes on average with the difference and without."""

    n_max: int
    power: float
    episodes: float
    episodes_if_equal: float


def sequential_plan(share: float, diff: float, *, alpha: float = 0.05, power: float = 0.8) -> SequentialPlan:
    """Find a maximum at which the sequential test has the power wanted, to two per cent of itself.

    ``share`` of the pairs are discordant. It is larger than :func:`paired_episodes`, which looks once; what counts is
    where the test stops on average. SettingError where more pairs are needed than the test is calibrated for.
    """

    def found(n_max: int) -> float:
        stops = false_alarm(boundary(n_max, alpha).lead, falls_to_b)
        return float(np.sum(stops * sps.binom.sf(np.arange(n_max + 1) - 1, n_max, share)))

    falls_to_b = (share + diff) / (2 * share)
    low = high = paired_episodes(share, diff, alpha=alpha, power=power)
    while found(high) < power:
        low, high = high, math.ceil(1.25 * high)
    while high - low > high // 50 + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    lead = boundary(high, alpha).lead
    reached, episodes = _stopping(lead, share, falls_to_b)
    equal = _stopping(lead, share, 0.5)[1]
    return {"n_max": high, "power": reached, "episodes": episodes, "episodes_if_equal": equal}


def _stopping(lead: NDArray[np.int64], share: float, falls_to_b: float) -> tuple[float, float]:
    """Probability that the test stops within the maximum, and the mean number of episodes until its end."""
    stops = false_alarm(lead, falls_to_b)
    pairs, most = np.arange(len(stops)), len(lead) - 1
    # A walk that stops at discordant pair d has stopped by episode t when t episodes hold d discordant ones. The mean
    # is the area over that curve; a hundred points give it to half an episode.
    times = np.unique(np.linspace(0, most, 101).astype(int))
    stopped = np.array([float(np.sum(stops * sps.binom.sf(pairs - 1, t, share))) for t in times])
    running = 1 - stopped
    return float(stopped[-1]), float(np.sum(np.diff(times) * (running[1:] + running[:-1]) / 2))
