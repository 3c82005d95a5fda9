"""Action tokens: each number of an action becomes one of ``bins`` evenly spaced values.

The first bin's centre lies on the data's 1 % quantile and the last one's on its 99 % quantile, so that the values
robots use most, the two gripper commands and full speed, are represented exactly::

    centre_i = low + i (high - low) / (bins - 1),     i = 0 … bins - 1

A dimension that never moves in the data (``high - low`` below :data:`STILL`) collapses to a constant: it encodes to
token 0, every token decodes to the constant, and :func:`allowed_bins` forbids the other bins.

Shapes legend: ``B`` rows, ``L`` chunk, ``A`` action.
"""

from __future__ import annotations

import torch
from torch import Tensor

STILL = 1e-3
"""A dimension whose 1 % and 99 % quantiles are closer than this (in action units) never moves."""


def still_dimensions(low: Tensor, high: Tensor) -> Tensor:
    """Return bool ``[A]``, true where the data never moves."""
    return (high - low) < STILL


def bin_spacing(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return the distance ``[A]`` between neighbouring centres; 0 in still dimensions."""
    return torch.where(still_dimensions(low, high), 0.0, (high - low) / (bins - 1))


def allowed_bins(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return bool ``[A, bins]``: every bin, but only bin 0 in still dimensions."""
    first = torch.arange(bins, device=low.device) == 0
    return ~still_dimensions(low, high)[:, None] | first


def fractional_token(action: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Map actions to real-valued token positions in [0, bins - 1].

    Args:
        action: float ``[..., A]``.
        low: float ``[A]``, the 1 % quantile.
        high: float ``[A]``, the 99 % quantile.
        bins: how many values per dimension.

    Returns:
        float ``[..., A]``; values outside ``low … high`` take the nearest end, still dimensions 0.
    """
    spacing = bin_spacing(low, high, bins)
    position = (action - low) / torch.where(spacing > 0, spacing, 1.0)
    return torch.where(spacing > 0, position.clamp(0, bins - 1), 0.0)


def encode(action: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Map actions to the nearest tokens.

    Args:
        action: float ``[..., A]``.
        low: float ``[A]``, the 1 % quantile.
        high: float ``[A]``, the 99 % quantile.
        bins: how many values per dimension.

    Returns:
        int64 ``[..., A]`` in [0, bins).
    """
    return fractional_token(action, low, high, bins).round().long()


def decode(token: Tensor, low: Tensor, high: Tensor, bins: int, *, bounds: tuple[Tensor, Tensor]) -> Tensor:
    """Map tokens to the centres of their bins.

    Args:
        token: int64 ``[..., A]`` in [0, bins).
        low: float ``[A]``, the 1 % quantile.
        high: float ``[A]``, the 99 % quantile.
        bins: how many values per dimension.
        bounds: least and greatest action ``[A]``, which neither rounding nor odd statistics may leave.

    Returns:
        float ``[..., A]`` within the bounds; the constant in still dimensions.
    """
    still = still_dimensions(low, high)
    action = torch.where(still, 0.5 * (low + high), low + token * bin_spacing(low, high, bins))
    return action.clamp(*bounds)


def soft_target(action: Tensor, low: Tensor, high: Tensor, *, bins: int, width: float) -> Tensor:
    """Spread an action's label over neighbouring bins as a Gaussian around its exact position.

    A plain one-hot label teaches the policy that a neighbouring bin is as wrong as any other, and leaves no width
    to explore with. ``width = 0`` is the one-hot label.

    Args:
        action: float ``[..., A]``.
        low: float ``[A]``, the 1 % quantile.
        high: float ``[A]``, the 99 % quantile.
        bins: how many values per dimension.
        width: standard deviation in bins.

    Returns:
        float ``[..., A, bins]``, non-negative, sums to 1 over the last axis, zero in forbidden bins.
    """
    if width == 0:
        return torch.nn.functional.one_hot(encode(action, low, high, bins), bins).to(action.dtype)
    position = fractional_token(action, low, high, bins)
    index = torch.arange(bins, device=action.device, dtype=action.dtype)
    score = -0.5 * ((index - position[..., None]) / width) ** 2
    score = score.masked_fill(~allowed_bins(low, high, bins), -torch.inf)
    return score.softmax(dim=-1)
