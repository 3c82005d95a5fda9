"""Quality of confidence scores: which score ranks confirmed successes above false positives?

The measure of a score (``rollout.trust.confidence``) is the area under its ROC curve among imagined successes: the probability that a
confirmed success has a higher score than a false positive (Hanley and McNeil 1982). 0.5 is chance, 1 is perfect. Areas of the same
rollouts differ by less than their own intervals, so scores are compared in pairs.

Shapes legend: ``E`` imagined rollouts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl.core.statistics.intervals import auroc, sps


def area_under_roc(pairs: NDArray[np.float64]) -> float:
    """Area under the ROC curve of pairs (score, 0 or 1) ``[E, 2]``; ties count half, 0.5 where one class is missing."""
    score, true = pairs[:, 0], pairs[:, 1] > 0
    return auroc(score[true], score[~true])


def worth(score: NDArray[np.float64], confirmed: NDArray[np.bool_], *, seed: int, name: str) -> Bootstrap:
    """Area under the ROC curve with its interval over rollouts."""
    pairs = np.stack([score, confirmed.astype(np.float64)], axis=1)
    return bootstrap(pairs, area_under_roc, generator=numpy_stream(seed, "trust", name))


def advantage(
    score: NDArray[np.float64],
    other: NDArray[np.float64],
    confirmed: NDArray[np.bool_],
    *,
    seed: int,
    name: str,
) -> Bootstrap:
    """How much larger a score's area is than another's, with its interval over the same rollouts."""
    columns = np.stack([score, other, confirmed.astype(np.float64)], axis=1)

    def above(some: NDArray[np.float64]) -> float:
        return area_under_roc(some[:, [0, 2]]) - area_under_roc(some[:, [1, 2]])

    return bootstrap(columns, above, generator=numpy_stream(seed, "trust", "advantage", name))


def rank_sum(*scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the scores' ranks among these rollouts ``[E]``; equal scores share a rank."""
    return np.sum([sps.rankdata(score) for score in scores], axis=0)
