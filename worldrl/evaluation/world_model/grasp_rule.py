"""Outcomes predicted from score and grasp: the odds of a true success, from the model's score and the plausibility of the grasp.

The score p of an imagined rollout is also high for false positives. An inverse dynamics of the grasp sees the first image and the
commands, and gives a normalised error d², a squared distance with a long tail. Logistic regression on tuning episodes combines them::

    η = β₀ + β₁ log(p / (1 - p)) - β₂ log(1 + d²)
    counts  <=>  η >= threshold

The threshold predicts most tuning episodes correctly among those by which at most :data:`LEVEL` of the failures count; of equal
ones the highest. A success without its required closing (infinite error) never counts. The fitted rule is stored in a file and applied
to other episodes.

Shapes legend: ``E`` episodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.jsonfile import read_json, read_record, write_json

SCHEMA = 2
LEVEL = 0.04
"""Share of the tuning failures that may count: 5 % are required of a world model, a few hundred failures give 1 % accuracy."""
RIDGE = 1e-2
"""Of the logistic regression on standardised scores: enough for scores that separate the outcomes perfectly."""
EDGE = 1e-6
"""Keeps logarithms and quotients finite."""
STEPS = 50
"""Of Newton's method; a dozen are enough."""
Key = tuple[str, int, int, int]
"""Identity of an initial state (``EpisodeSpec.key``)."""


@dataclass(frozen=True)
class GraspRule:
    """When an episode counts as an imagined success."""

    weights: tuple[float, float, float]  # β₀, β₁ and β₂.
    threshold: float  # least η.
    made_for: dict[str, Any]  # hashes of the world model and of the inverse dynamics, and the sampler.
    tuned: frozenset[Key]  # initial states of the tuning episodes, to which it must not be applied.

    def odds(self, score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
        """η ``[E]`` of scores p and agreements -d²."""
        return np.column_stack([np.ones(len(score)), features(score, agreement)]) @ np.array(self.weights)

    def counts(self, score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which episodes count ``[E]``."""
        return (self.odds(score, agreement) >= self.threshold) & ~unheld(agreement)

    def save(self, file: Path) -> None:
        """Write one JSON file."""
        write_json(file, {**asdict(self), "schema": SCHEMA, "tuned": sorted(list(key) for key in self.tuned)})

    @classmethod
    def load(cls, file: Path) -> GraspRule:
        """Read the file of :meth:`save`; ArtefactError where it is missing, damaged or something else."""
        schema = read_json(file, error=ArtefactError).get("schema")
        if schema != SCHEMA:
            raise ArtefactError(f"{file}: schema {schema}, this version reads {SCHEMA}; fit the rule again")
        return read_record(file, cls, error=ArtefactError, mend="fit the rule again with grasp_rule=fit")


def features(score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 - p)) and -log(1 + d²), ``[E, 2]``."""
    p = np.clip(score, EDGE, 1 - EDGE)
    return np.column_stack([np.log(p / (1 - p)), -np.log1p(-agreement)])


def unheld(agreement: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark infinite errors ``[E]``; files hold the largest number instead."""
    return agreement <= -np.finfo(np.float64).max


def fit_rule(
    actual: NDArray[np.bool_],
    score: NDArray[np.float64],
    agreement: NDArray[np.float64],
    *,
    made_for: dict[str, Any],
    tuned: frozenset[Key],
) -> GraspRule:
    """Fit weights and threshold to real outcomes ``actual``, debounced scores and agreements (minus d²), each ``[E]``.

    Raises SettingError (all episodes succeeded, or none did with the required closing).
    """
    held = ~unheld(agreement)
    if not actual[held].any() or actual.all():
        raise SettingError(
            f"grasp_rule=fit: of {len(actual)} tuning episodes {actual.sum()} really succeeded; a rule needs successes and "
            "failures: give other episodes"
        )
    free = GraspRule(logistic(features(score, agreement)[held], actual[held]), -np.inf, made_for, tuned)
    return replace(
        free, threshold=best_threshold(free.odds(score, agreement)[held], actual[held], int((~actual).sum()))
    )


def best_threshold(odds: NDArray[np.float64], actual: NDArray[np.bool_], failures: int) -> float:
    """Highest η among the best predictors by which at most :data:`LEVEL` of the failures count."""
    candidates = np.append(np.unique(odds), np.finfo(np.float64).max)  # with the last one nothing counts
    false = np.array([(odds[~actual] >= least).sum() for least in candidates])
    right = np.array([(odds[actual] >= least).sum() for least in candidates]) - false
    allowed = candidates[false <= LEVEL * failures], right[false <= LEVEL * failures]
    return float(allowed[0][allowed[1] == allowed[1].max()].max())


def logistic(x: NDArray[np.float64], y: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Fit β of P(y) = 1 / (1 + exp(-β₀ - x β)) by Newton's method, with :data:`RIDGE` on standardised ``x`` ``[E, 2]``."""
    mean, deviation = x.mean(axis=0), x.std(axis=0) + EDGE
    z = np.column_stack([np.ones(len(x)), (x - mean) / deviation])
    beta, ridge = np.zeros(3), RIDGE * np.diag([0.0, 1.0, 1.0])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-z @ beta))
        gradient = z.T @ (p - y) + ridge @ beta
        beta = beta - np.linalg.solve((z.T * (p * (1 - p) + EDGE)) @ z + ridge, gradient)
    slopes = beta[1:] / deviation
    return float(beta[0] - slopes @ mean), float(slopes[0]), float(slopes[1])
