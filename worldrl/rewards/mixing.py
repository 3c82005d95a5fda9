"""Mixing of several rewards to one number: normalised within each group first (GDPO, arXiv 2601.05242), or averaged.

    A_k = (r_k - mean_g r_k) / (std_g r_k + 1e-4),   A = Σ_k w_k A_k,   A ← (A - mean A) / (std A + eps)

The normalisation removes each reward's unit. Rollouts with different combinations of rewards keep different advantages,
which a sum of raw rewards would merge. Groups are scattered by id and may have different sizes.

Shapes legend: ``N`` rollouts, ``K`` rewards.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from worldrl.core.errors import SettingError

EPS = 1e-4


def mix(rewards: Tensor, group: Tensor, *, weights: Sequence[float] | None = None) -> Tensor:
    """Mix rewards ``[N, K]`` to advantages ``[N]`` of mean 0 and about unit deviation over the batch.

    Equation: A = Σ_k w_k (r_k - mean_g) / (std_g + 1e-4), then normalised over the batch
    Paper: GDPO (2601.05242)

    ``group`` int64 ``[N]`` is shared by the rollouts of one start. Raises SettingError: shapes that do not fit.
    """
    if rewards.ndim != 2 or group.shape != rewards.shape[:1]:
        raise SettingError(f"mix: needs rewards [N, K] and group [N], got {rewards.shape} and {group.shape}")
    if weights is not None and len(weights) != rewards.shape[1]:
        raise SettingError(f"mix: {rewards.shape[1]} rewards need as many weights, got {len(weights)}")
    normal = group_normalised(rewards, group)
    mixed = normal.sum(dim=1) if weights is None else normal @ normal.new_tensor(list(weights))
    return (mixed - mixed.mean()) / (_deviation(mixed) + EPS)


def mean_of_terms(rewards: Tensor, group: Tensor, *, weights: Sequence[float] | None = None) -> Tensor:
    """Mix rewards ``[N, K]`` by their weighted mean, for one reward or rewards of one scale; ``group`` is ignored.

    Equation: r = Σ_k w_k r_k / Σ_k w_k
    Paper: none
    """
    if weights is None:
        return rewards.mean(dim=1)
    share = rewards.new_tensor(list(weights))
    return rewards @ (share / share.sum())


def group_normalised(rewards: Tensor, group: Tensor) -> Tensor:
    """A_k ``[N, K]``, with the sample deviation; 0 in groups of one and where all mates have the same."""
    centred, deviation = _centred(rewards, group)
    return centred / (deviation + EPS)


def group_deviation(rewards: Tensor, group: Tensor) -> Tensor:
    """Sample deviation ``[N, K]`` of each reward in its rollout's group."""
    return _centred(rewards, group)[1]


def _centred(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards less their group's mean, and their group's sample deviation, ``[N, K]`` each."""
    count = _scatter(torch.ones_like(rewards), group)
    centred = rewards - (_scatter(rewards, group) / count)[group]
    variance = _scatter(centred.square(), group) / (count - 1).clamp_min(1)
    return centred, variance.sqrt()[group]


def _scatter(values: Tensor, group: Tensor) -> Tensor:
    return values.new_zeros(int(group.max()) + 1, values.shape[1]).index_add_(0, group, values)


def _deviation(values: Tensor) -> Tensor:
    return (values - values.mean()).square().sum().div(max(len(values) - 1, 1)).sqrt()
