"""Outcomes told by score and grasp together: the odds of a true success, from how sure a dream is and whether the hand closed well.

A dream's own score p is high for false successes, too; inverse dynamics of the grasp looks at the picture at the beginning and at the
commands instead, and is surprised by d², a squared distance with a long tail, whose logarithm is tame. With both, by logistic
regression on tuning episodes::

    η = β₀ + β₁ log(p / (1 - p)) - β₂ log(1 + d²)
    counts  <=>  η >= threshold

The threshold is the one that tells most tuning episodes right among those by which at most :data:`LEVEL` of the failures count, the
highest of equals. A success that needs a closing and had none (infinite surprise) never counts. What was fitted is kept in a file,
and judges other episodes.

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
"""Share of the tuning failures that may count: 5 % are asked of a world model, and a few hundred failures say it to a point."""
RIDGE = 1e-2
"""Of the logistic regression, on standardised signs: enough for signs that part the outcomes without an error."""
EDGE = 1e-6
"""Keeps logarithms and quotients finite."""
STEPS = 50
"""Newton's; a dozen are enough."""
Key = tuple[str, int, int, int]
"""Identity of an initial state (``EpisodeSpec.key``)."""


@dataclass(frozen=True)
class GraspRule:
    """When an episode counts as an imagined success.

    Attributes:
        weights: β₀, β₁ and β₂.
        threshold: least η.
        made_for: hashes of the world model and of the inverse dynamics, and the sampler.
        tuned: initial states of the tuning episodes, which it must not judge.
    """

    weights: tuple[float, float, float]
    threshold: float
    made_for: dict[str, Any]
    tuned: frozenset[Key]

    def odds(self, score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
        """η ``[E]`` of scores p and agreements -d²."""
        return np.column_stack([np.ones(len(score)), signs(score, agreement)]) @ np.array(self.weights)

    def counts(self, score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which episodes count ``[E]``."""
        return (self.odds(score, agreement) >= self.threshold) & ~unheld(agreement)

    def save(self, file: Path) -> None:
        """Write one JSON file."""
        write_json(file, {**asdict(self), "schema": SCHEMA, "tuned": sorted(list(key) for key in self.tuned)})

    @classmethod
    def load(cls, file: Path) -> GraspRule:
        """Read :meth:`save`'s file.

        Raises:
            ArtefactError: it is missing, damaged or something else.
        """
        schema = read_json(file, error=ArtefactError).get("schema")
        if schema != SCHEMA:
            raise ArtefactError(f"{file}: schema {schema}, this version reads {SCHEMA}; fit the rule again")
        return read_record(file, cls, error=ArtefactError, mend="fit the rule again with grasp_rule=fit")


def signs(score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(p / (1 - p)) and -log(1 + d²), ``[E, 2]``."""
    p = np.clip(score, EDGE, 1 - EDGE)
    return np.column_stack([np.log(p / (1 - p)), -np.log1p(-agreement)])


def unheld(agreement: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark infinite surprises ``[E]``; files hold the largest number instead."""
    return agreement <= -np.finfo(np.float64).max


def fit_rule(
    actual: NDArray[np.bool_],
    score: NDArray[np.float64],
    agreement: NDArray[np.float64],
    *,
    made_for: dict[str, Any],
    tuned: frozenset[Key],
) -> GraspRule:
    """Fit weights and threshold.

    Args:
        actual: bool ``[E]``, really succeeded with the same actions.
        score: ``[E]``, debounced.
        agreement: ``[E]``, minus the surprise at the closing.
        made_for: what the rule is of.
        tuned: the episodes.

    Raises:
        SettingError: all episodes succeeded, or none did with the closing that it needs.
    """
    held = ~unheld(agreement)
    if not actual[held].any() or actual.all():
        raise SettingError(
            f"grasp_rule=fit: of {len(actual)} tuning episodes {actual.sum()} really succeeded; a rule needs successes and "
            "failures: give other episodes"
        )
    free = GraspRule(logistic(signs(score, agreement)[held], actual[held]), -np.inf, made_for, tuned)
    return replace(
        free, threshold=best_threshold(free.odds(score, agreement)[held], actual[held], int((~actual).sum()))
    )


def best_threshold(odds: NDArray[np.float64], actual: NDArray[np.bool_], failures: int) -> float:
    """Return the η that tells most right among those by which at most :data:`LEVEL` of the failures count, the highest of equals."""
    candidates = np.append(np.unique(odds), np.finfo(np.float64).max)  # by the last one nothing counts
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
        slope = z.T @ (p - y) + ridge @ beta
        beta = beta - np.linalg.solve((z.T * (p * (1 - p) + EDGE)) @ z + ridge, slope)
    of_signs = beta[1:] / deviation
    return float(beta[0] - of_signs @ mean), float(of_signs[0]), float(of_signs[1])
