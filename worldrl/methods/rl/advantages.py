"""Advantages by group, as pure functions that scatter by group id.

Groups may have different sizes, so nothing here reshapes to [N, G].

Shapes legend: ``B`` rollouts, ``N`` groups; ``group`` int64 ``[B]`` with ids 0..N-1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_sum(value: Tensor, group: Tensor) -> Tensor:
    """Sum ``value`` ``[B]`` within groups: ``[N]``."""
    return torch.zeros(int(group.max()) + 1, dtype=value.dtype).scatter_add_(0, group, value)


def group_mean(value: Tensor, group: Tensor) -> Tensor:
    """Mean of ``value`` ``[B]`` within groups: ``[N]``."""
    return group_sum(value, group) / group_sum(torch.ones_like(value), group).clamp_min(1)


def group_advantage(value: Tensor, group: Tensor, *, eps: float = 1e-6, scale: bool = True) -> Tensor:
    """GRPO: A_i = (R_i - mean_g) / (std_g + eps), with the sample standard deviation (WoVR's code).

    Args:
        value: returns ``[B]``.
        group: group ids ``[B]``.
        eps: added to the deviation.
        scale: divide by the deviation; without it this is WoVR's text and Dr. GRPO.

    Returns:
        ``[B]``; 0 in groups of one and in groups whose returns are all equal.
    """
    centred = value - group_mean(value, group)[group]
    if not scale:
        return centred
    count = group_sum(torch.ones_like(value), group)
    variance = group_sum(centred.square(), group) / (count - 1).clamp_min(1)
    return centred / (variance.sqrt() + eps)[group]


def mates_mean(value: Tensor, group: Tensor) -> Tensor:
    """Mean of ``value`` ``[B]`` over each rollout's group mates, itself left out (RLOO's baseline); 0 for one alone."""
    count = group_sum(torch.ones_like(value), group)[group]
    return (group_sum(value, group)[group] - value) / (count - 1).clamp_min(1)


def informative(success: Tensor, group: Tensor, *, low: float, high: float) -> Tensor:
    """Mark rollouts of groups whose success rate lies within [low, high] and is neither 0 nor 1 (DAPO's filter).

    Args:
        success: 0 or 1, ``[B]``.
        group: group ids ``[B]``.
        low: least mean success.
        high: largest mean success.

    Returns:
        bool ``[B]``.
    """
    rate = group_mean(success.float(), group)
    keep = (rate >= low) & (rate <= high) & (rate > 0) & (rate < 1)
    return keep[group]
