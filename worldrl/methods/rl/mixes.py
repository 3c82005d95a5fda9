"""Reward mixes of policies; those of videos are in ``rewards.mixing``.

Shapes legend: ``B`` rollouts, ``K`` reward terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from worldrl.methods.rl.advantages import group_advantage


def only_term(terms: Tensor, group: Tensor) -> Tensor:
    """Return the only term of ``[B, 1]``."""
    return terms[:, 0]


def summed_advantages(terms: Tensor, group: Tensor, *, weights: Sequence[float]) -> Tensor:
    """Add the z-scores of every term, each in its group: advantages already, Σ_k w_k A_k."""
    first, *others = (w * group_advantage(term, group) for w, term in zip(weights, terms.unbind(dim=1), strict=True))
    return sum(others, first)
