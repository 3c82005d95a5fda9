"""Intervals and tests for success rates, paired comparisons, means and correlations; everything at 95 %.

Wilson: E. B. Wilson, JASA 22 (1927). Paired difference: R. G. Newcombe, Statistics in Medicine 17 (1998) 2635-2650,
method 10. McNemar: exact binomial on the discordant pairs.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldrl.core.errors import SettingError
from worldrl.core.lookup import Lazy

sps: Any = Lazy("scipy.stats")
Z = 1.959963984540054  # 0.975 quantile of the normal distribution


class Rate(TypedDict):
    """A success rate: ``k`` of ``n`` with its 95 % Wilson interval."""

    k: int
    n: int
    rate: float
    lo: float
    hi: float
    method: Literal["wilson"]


class Paired(TypedDict):
    """Two policies on the same episodes: counts, ``rate(b) - rate(a)`` with a 95 % interval, and a p-value."""

    n: int
    both: int
    only_a: int
    only_b: int
    neither: int
    diff: float
    lo: float
    hi: float
    p: float


class Mean(TypedDict):
    """A mean with its 95 % Student interval."""

    n: int
    mean: float
    sd: float
    lo: float
    hi: float
    method: Literal["student"]


class Correlation(TypedDict):
    """Pearson's r with its 95 % Fisher interval and the p-value of no correlation."""

    n: int
    r: float
    lo: float
    hi: float
    p: float
    method: Literal["fisher"]


def wilson(k: int, n: int) -> Rate:
    """Return ``k`` successes of ``n`` ≥ 1 trials as rate with its 95 % Wilson interval; SettingError out of range."""
    if not 0 <= k <= n or n < 1:
        raise SettingError(f"wilson: need 0 <= k <= n and n >= 1, got k={k}, n={n}")
    lo, hi = _wilson_limits(k, n)
    return {"k": int(k), "n": int(n), "rate": k / n, "lo": lo, "hi": hi, "method": "wilson"}


def paired(a: ArrayLike, b: ArrayLike) -> Paired:
    """Compare two policies on the same episodes, bool ``[n]``: Newcombe's interval (method 10), exact McNemar's p."""
    first, second = _outcomes("a", a), _outcomes("b", b)
    if first.size != second.size:
        raise SettingError(f"paired: a has {first.size} episodes and b {second.size}; pair them by episode first")
    cells = (first & second, first & ~second, ~first & second, ~first & ~second)
    both, only_a, only_b, neither = (int(cell.sum()) for cell in cells)
    lo, hi = newcombe(both, only_a, only_b, neither)
    return {
        "n": first.size,
        "both": both,
        "only_a": only_a,
        "only_b": only_b,
        "neither": neither,
        "diff": (only_b - only_a) / first.size,
        "lo": lo,
        "hi": hi,
        "p": mcnemar(only_a, only_b),
    }


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that the discordant pairs fall either way with probability 1/2."""
    discordant = only_a + only_b
    return float(sps.binomtest(only_b, discordant, 0.5).pvalue) if discordant else 1.0


def newcombe(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float]:
    """95 % interval of ``rate(b) - rate(a)`` in [-1, 1] from counts of paired outcomes, Newcombe's method 10.

    Wilson intervals of both rates are squared and added, less their correlation φ, whose numerator is corrected for
    continuity when positive.
    """
    n = both + only_a + only_b + neither
    rate_a, rate_b = (both + only_a) / n, (both + only_b) / n
    (low_a, high_a), (low_b, high_b) = _wilson_limits(both + only_a, n), _wilson_limits(both + only_b, n)
    phi = _phi(both, only_a, only_b, neither)
    below = _combine(rate_b - low_b, high_a - rate_a, phi)
    above = _combine(high_b - rate_b, rate_a - low_a, phi)
    diff = rate_b - rate_a
    return max(diff - below, -1.0), min(diff + above, 1.0)


def mean_interval(values: ArrayLike) -> Mean:
    """Mean of at least 2 independent finite values with its 95 % Student interval; else SettingError."""
    x = _numbers("mean_interval", values, least=2)
    mean, sd = float(np.mean(x)), float(np.std(x, ddof=1))
    half = float(sps.t.ppf(0.975, x.size - 1)) * sd / math.sqrt(x.size)
    return {"n": x.size, "mean": mean, "sd": sd, "lo": mean - half, "hi": mean + half, "method": "student"}


def pearson(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Correlation of at least 4 finite pairs with Fisher's 95 % interval and p-value; else SettingError."""
    first, second = _numbers("pearson x", x, least=4), _numbers("pearson y", y, least=4)
    if first.size != second.size:
        raise SettingError(f"pearson: x has {first.size} values and y {second.size}; they must be pairs")
    for name, value in (("x", first), ("y", second)):
        if np.ptp(value) == 0:
            raise SettingError(f"pearson: {name} is constant ({value[0]}), so the correlation is undefined")
    result = sps.pearsonr(first, second)
    interval = result.confidence_interval(0.95)
    return {
        "n": first.size,
        "r": float(result.statistic),
        "lo": float(interval.low),
        "hi": float(interval.high),
        "p": float(result.pvalue),
        "method": "fisher",
    }


def _wilson_limits(k: int, n: int) -> tuple[float, float]:
    centre = (k + Z * Z / 2) / (n + Z * Z)
    half = Z * math.sqrt(k * (n - k) / n + Z * Z / 4) / (n + Z * Z)
    # At k = 0 and k = n one limit is exactly 0 or 1; rounding would put it a hair beyond.
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)


def _phi(both: int, only_a: int, only_b: int, neither: int) -> float:
    product = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    cross = both * neither - only_a * only_b
    if product == 0:
        return 0.0
    corrected = max(cross - (both + only_a + only_b + neither) / 2, 0.0) if cross > 0 else cross
    return corrected / math.sqrt(product)


def _combine(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))


def auroc(above: ArrayLike, below: ArrayLike) -> float:
    """Probability that a number above exceeds one below, ties half (Mann-Whitney); 0.5 where one kind is missing."""
    first, second = np.asarray(above, np.float64), np.asarray(below, np.float64)
    n, m = first.size, second.size
    if not n * m:
        return 0.5
    ranks = sps.rankdata(np.concatenate([first, second]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


class Within(TypedDict):
    """An area under the ROC curve within strata: of ``pairs`` pairs in ``strata`` of ``of`` strata; no value without a pair."""

    value: float | None
    pairs: int
    strata: int
    of: int


def auroc_within(score: ArrayLike, hit: ArrayLike, stratum: Sequence[Any]) -> Within:
    """Share of the pairs of a hit and a miss *of one stratum* that a score puts in order, ties counting half.

    Σ_s n_s m_s A_s / Σ_s n_s m_s: a score that only distinguishes strata has 0.5. ``score`` and ``hit`` (bool) are
    ``[n]``, ``stratum`` are ``n`` names; SettingError for other lengths.
    """
    value, came = np.asarray(score, np.float64), np.asarray(hit, np.bool_)
    if not value.size == came.size == len(stratum):
        raise SettingError(
            f"auroc_within: {value.size} scores, {came.size} outcomes and {len(stratum)} strata; need one each"
        )
    names = dict.fromkeys(stratum)
    areas, pairs = list[float](), list[int]()
    for name in names:
        mine = np.array([each == name for each in stratum])
        above, below = value[mine & came], value[mine & ~came]
        if above.size and below.size:
            areas.append(auroc(above, below))
            pairs.append(above.size * below.size)
    known = float(np.average(areas, weights=pairs)) if pairs else None
    return {"value": known, "pairs": sum(pairs), "strata": len(pairs), "of": len(names)}


def _outcomes(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype != np.bool_:
        raise SettingError(f"{name}: must be a bool array [n], n >= 1, got {array.dtype} {list(array.shape)}")
    return array


def _numbers(name: str, values: ArrayLike, *, least: int) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size < least:
        raise SettingError(f"{name}: needs at least {least} values in one row, got shape {list(array.shape)}")
    if not np.isfinite(array).all():
        raise SettingError(f"{name}: value {int(np.flatnonzero(~np.isfinite(array))[0])} is not finite")
    return array
