"""Best-of-N: the candidate of highest score (V-GPS, "Steering Your Generalists", 2410.13816).

    a* = argmax_n s(a_n),   a_n ~ π(. | o),   a_0 the policy's own chunk, which wins ties

Shapes legend: ``N`` candidates, ``L`` control steps, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Score = Callable[[Tensor], Tensor]
"""Maps chunks ``[N, L, A]`` to their scores ``[N]``; the same chunk always has the same score."""


@dataclass(frozen=True)
class Plan:
    """A chosen chunk ``[L, A]`` and its score."""

    action: Tensor
    score: float


def best(candidates: Tensor, scores: Tensor) -> Plan:
    """Return the candidate of highest score, the first one of several."""
    place = int((scores == scores.max()).nonzero()[0])
    return Plan(candidates[place], float(scores[place]))


def best_of_n(candidates: Tensor, score: Score) -> Plan:
    """Choose among candidates ``[N, L, A]``."""
    return best(candidates, score(candidates))
