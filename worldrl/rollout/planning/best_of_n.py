"""Best-of-N: the candidate of highest score (V-GPS, "Steering Your Generalists", 2410.13816).

    a* = argmax_n s(a_n),   a_n ~ π in imagination,   a_0 the policy's own plan, which wins ties

Shapes legend: ``N`` candidates, ``T`` control steps, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Score = Callable[[Tensor], Tensor]
"""Maps plans ``[N, T, A]`` to their scores ``[N]``; the same plan always has the same score."""


@dataclass(frozen=True)
class Plan:
    """Actions ``[T, A]`` and their score."""

    action: Tensor
    score: float


def best_of_n(candidates: Tensor, scores: Tensor) -> Plan:
    """Choose among candidates ``[N, T, A]`` with scores ``[N]``; the first of several equal ones."""
    place = int((scores == scores.max()).nonzero()[0])
    return Plan(candidates[place], float(scores[place]))
