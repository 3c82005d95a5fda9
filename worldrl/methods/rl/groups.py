"""Sums, means and extremes within groups, by id: groups may have any sizes.

Shapes legend: ``B`` rows, ``N`` groups; ``group`` int64 ``[B]`` with ids 0..N-1.
"""

import torch
from torch import Tensor


def group_sum(value: Tensor, group: Tensor) -> Tensor:
    """Sum ``value`` ``[B]`` within groups: ``[N]``."""
    return torch.zeros(int(group.max()) + 1, dtype=value.dtype).scatter_add_(0, group, value)


def group_mean(value: Tensor, group: Tensor) -> Tensor:
    """Mean of ``value`` ``[B]`` within groups: ``[N]``."""
    return group_sum(value, group) / group_sum(torch.ones_like(value), group).clamp_min(1)


def group_range(value: Tensor, group: Tensor) -> Tensor:
    """Largest less least ``value`` ``[B]`` within groups: ``[N]``; 0 in a group without a row."""
    ends = (
        value.new_zeros(int(group.max()) + 1).scatter_reduce_(0, group, value, kind, include_self=False)
        for kind in ("amax", "amin")
    )
    return next(ends) - next(ends)


def mates_mean(value: Tensor, group: Tensor) -> Tensor:
    """Mean of ``value`` ``[B]`` over each row's group mates, itself left out (RLOO's baseline); 0 for one alone."""
    count = group_sum(torch.ones_like(value), group)[group]
    return (group_sum(value, group)[group] - value) / (count - 1).clamp_min(1)
