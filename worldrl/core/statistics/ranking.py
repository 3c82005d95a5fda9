"""Which of ``P`` policies is best on ``E`` shared episodes, and whether one measure orders them as another does."""

import math
from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import Z, sps

RESAMPLES = 10_000


class RankCorrelation(TypedDict):
    """Spearman's rank correlation with its 95 % interval."""

    n: int
    r: float
    lo: float
    hi: float
    method: Literal["bonett-wright"]


def probability_best(
    success: NDArray[np.bool_], stratum: Sequence[str], *, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Probability ``[P]`` that each policy has the highest mean, from outcomes ``[P, E]``; it sums to 1.

    Episodes are drawn within each ``stratum`` (``E`` names), for all policies alike, so the comparison is paired and
    their order does not matter; ties share a resample. SettingError for other shapes.
    """
    if success.ndim != 2 or success.size == 0 or success.shape[1] != len(stratum):
        raise SettingError(
            f"probability_best: needs outcomes [policies, episodes] and a stratum of each episode, got "
            f"{list(success.shape)} and {len(stratum)}"
        )
    names, wins = np.asarray(stratum), np.zeros((RESAMPLES, len(success)), np.int64)
    for name in sorted(set(stratum)):
        rows = np.flatnonzero(names == name)
        drawn = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES)  # [R, E of it]
        wins += drawn @ success[:, rows].T.astype(np.int64)
    best = wins == wins.max(axis=1, keepdims=True)
    return (best / best.sum(axis=1, keepdims=True)).mean(axis=0)


def spearman(x: ArrayLike, y: ArrayLike) -> RankCorrelation:
    """Rank correlation of at least 4 pairs, ties at their mean rank; SettingError for others and constants.

    Fisher's transform with the variance (1 + r²/2) / (n - 3) of Bonett and Wright, Psychometrika 65 (2000).
    """
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.shape != second.shape or first.ndim != 1 or first.size < 4:
        raise SettingError(f"spearman: needs at least 4 pairs, got {list(first.shape)} and {list(second.shape)}")
    if not (np.ptp(first) and np.ptp(second)):
        raise SettingError("spearman: a constant has no ranks, so the correlation is undefined")
    r = float(np.corrcoef(sps.rankdata(first), sps.rankdata(second))[0, 1])
    if abs(r) > 1 - 1e-12:
        return {"n": first.size, "r": math.copysign(1.0, r), "lo": r, "hi": r, "method": "bonett-wright"}
    half = Z * math.sqrt((1 + r * r / 2) / (first.size - 3))
    lo, hi = (math.tanh(math.atanh(r) + side * half) for side in (-1, 1))
    return {"n": first.size, "r": r, "lo": lo, "hi": hi, "method": "bonett-wright"}


def mean_maximum_rank_violation(estimate: ArrayLike, real: ArrayLike) -> float:
    """MMRV of X. Li et al., SIMPLER (2024), equation 2; 0 is perfect.

    Mean over i of max over j of |real_i - real_j| where (estimate_i < estimate_j) differs from (real_i < real_j).
    """
    guess, true = np.asarray(estimate, np.float64), np.asarray(real, np.float64)
    wrong = (guess[:, None] < guess[None]) != (true[:, None] < true[None])
    return float((np.abs(true[:, None] - true[None]) * wrong).max(axis=1).mean())
