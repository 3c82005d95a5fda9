"""Whom to believe: which sign of a dream tells whether its imagined success would come true?

What a sign (``rollout.trust.confidence``) is worth is the area under its ROC curve among the dreams that were imagined to succeed:
the probability that it ranks a dream that came true above one that did not (Hanley and McNeil 1982). 0.5 knows nothing, 1
everything.

Which sign predicts best is a matter of pairs: areas of the same dreams differ by less than their own intervals are wide.

Shapes legend: ``E`` dreams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl.core.statistics.intervals import auroc


def area_under_roc(pairs: NDArray[np.float64]) -> float:
    """Area under the ROC curve of pairs (sign, 0 or 1) ``[E, 2]``; ties count half, and 0.5 where one class is missing."""
    sign, true = pairs[:, 0], pairs[:, 1] > 0
    return auroc(sign[true], sign[~true])


def worth(sign: NDArray[np.float64], confirmed_by_execution: NDArray[np.bool_], *, seed: int, name: str) -> Bootstrap:
    """Return the area under the ROC curve with its interval over dreams."""
    pairs = np.stack([sign, confirmed_by_execution.astype(np.float64)], axis=1)
    return bootstrap(pairs, area_under_roc, generator=numpy_stream(seed, "trust", name))


def advantage(
    sign: NDArray[np.float64],
    other: NDArray[np.float64],
    confirmed_by_execution: NDArray[np.bool_],
    *,
    seed: int,
    name: str,
) -> Bootstrap:
    """Return how much larger a sign's area is than another's, with its interval over the same dreams."""
    columns = np.stack([sign, other, confirmed_by_execution.astype(np.float64)], axis=1)

    def above(some: NDArray[np.float64]) -> float:
        return area_under_roc(some[:, [0, 2]]) - area_under_roc(some[:, [1, 2]])

    return bootstrap(columns, above, generator=numpy_stream(seed, "trust", "advantage", name))


def rank_sum(*signs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the signs' ranks among these dreams ``[E]``; equal ones share theirs."""
    return np.sum([rankdata(sign) for sign in signs], axis=0)
