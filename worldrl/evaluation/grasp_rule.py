"""Outcomes told by score and grasp together: an imagined success counts only where both, taken together, are high enough.

A dream's own score is high for false successes, too; inverse dynamics of the grasp looks at the picture at the beginning and at the
commands instead. Score (a probability) and agreement (minus a squared distance) have nothing in common but their order, so each is
standardised by rank: the share of the tuning episodes' imagined successes that it exceeds. ::

    counts  <=>  imagined to succeed  and  rank(score) + rank(agreement) >= threshold

Ranks and threshold come from tuning episodes, are kept in a file, and judge other episodes.

Shapes legend: ``E`` episodes, ``N`` imagined successes among the tuning episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.jsonfile import read_json, write_json

SCHEMA = 1
Key = tuple[str, int, int, int]
"""Identity of an initial state (``EpisodeSpec.key``)."""


@dataclass(frozen=True)
class GraspRule:
    """When an imagined success counts.

    Attributes:
        score: of the tuning episodes' imagined successes, ascending, ``N``.
        agreement: of their grasps, ascending, ``N``.
        threshold: least sum of both ranks, in [0, 2].
        made_for: hashes of the world model and of the inverse dynamics, and the sampler.
        tuned: initial states of the tuning episodes, which it must not judge.
    """

    score: tuple[float, ...]
    agreement: tuple[float, ...]
    threshold: float
    made_for: dict[str, Any]
    tuned: frozenset[Key]

    def together(self, score: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of both ranks ``[E]``."""
        return rank_among(self.score, score) + rank_among(self.agreement, agreement)

    def counts(
        self, imagined: NDArray[np.bool_], score: NDArray[np.float64], agreement: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Which imagined successes count ``[E]``."""
        return imagined & (self.together(score, agreement) >= self.threshold)

    def save(self, file: Path) -> None:
        """Write one JSON file."""
        write_json(file, {**asdict(self), "schema": SCHEMA, "tuned": sorted(list(key) for key in self.tuned)})

    @classmethod
    def load(cls, file: Path) -> GraspRule:
        """Read :meth:`save`'s file.

        Raises:
            ArtefactError: it is missing, damaged or something else.
        """
        found = read_json(file, error=ArtefactError)
        try:
            if found["schema"] != SCHEMA:
                raise ArtefactError(
                    f"{file}: schema {found['schema']}, this version reads {SCHEMA}; fit the rule again"
                )
            score, agreement = (tuple(map(float, found[name])) for name in ("score", "agreement"))
            tuned = frozenset((str(task), int(i), int(state), int(seed)) for task, i, state, seed in found["tuned"])
            return cls(score, agreement, float(found["threshold"]), dict(found["made_for"]), tuned)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(
                f"{file}: not a rule of score and grasp: {error}; fit it again with grasp_rule=fit"
            ) from error


def rank_among(known: Sequence[float], value: ArrayLike) -> NDArray[np.float64]:
    """Share of ``known`` (ascending) that each value exceeds, equal ones counting half."""
    below, upto = (np.searchsorted(known, value, side) for side in ("left", "right"))
    return (below + upto) / (2 * len(known))


def fit_rule(
    imagined: NDArray[np.bool_],
    actual: NDArray[np.bool_],
    score: NDArray[np.float64],
    agreement: NDArray[np.float64],
    *,
    made_for: dict[str, Any],
    tuned: frozenset[Key],
) -> GraspRule:
    """Choose the threshold that tells most outcomes of the tuning episodes right; of equal ones the highest.

    Args:
        imagined: bool ``[E]``, imagined to succeed.
        actual: bool ``[E]``, really succeeded with the same actions.
        score: ``[E]``, debounced.
        agreement: ``[E]``, minus the surprise at the closing.
        made_for: what the rule is of.
        tuned: the episodes.

    Raises:
        SettingError: the imagined successes are all true, all false, or none.
    """
    true = actual[imagined]
    if not true.any() or true.all():
        raise SettingError(
            f"grasp_rule=fit: of {len(imagined)} tuning episodes {imagined.sum()} are imagined to succeed, {true.sum()} of these "
            "came true; a threshold needs both true and false ones: give more episodes"
        )
    known, grasped = (tuple(np.sort(sign[imagined]).tolist()) for sign in (score, agreement))
    rule = GraspRule(known, grasped, 0.0, made_for, tuned)
    together = rule.together(score, agreement)[imagined]
    candidates = np.unique(together)
    right = [int(((together >= least) == true).sum()) for least in candidates]
    best = len(right) - 1 - int(np.argmax(right[::-1]))
    return GraspRule(known, grasped, float(candidates[best]), made_for, tuned)
