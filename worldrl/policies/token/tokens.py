"""Action tokens: each number of an action becomes one of ``bins`` evenly spaced values.

The first bin's centre is the data's 1 % quantile and the last one's its 99 % quantile. The most frequent values, the
two gripper commands and full speed, are then represented exactly::

    centre_i = low + i (high - low) / (bins - 1),     i = 0 … bins - 1

A dimension that never moves in the data (``high - low`` below :data:`STILL`) collapses to a constant: it encodes to
token 0, every token decodes to the constant, and :func:`allowed_bins` forbids the other bins.

In every function ``action`` is float ``[..., A]``, ``low`` and ``high`` are the quantiles ``[A]``.
Shapes legend: ``B`` rows, ``L`` chunk, ``A`` action.
"""

import torch
from torch import Tensor

STILL = 1e-3  # a dimension with a smaller distance between its quantiles (in action units) never moves


def still_dimensions(low: Tensor, high: Tensor) -> Tensor:
    """Bool ``[A]``, true where the data never moves."""
    return (high - low) < STILL


def bin_spacing(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Distance ``[A]`` between neighbouring centres; 0 in still dimensions."""
    return torch.where(still_dimensions(low, high), 0.0, (high - low) / (bins - 1))


def allowed_bins(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Bool ``[A, bins]``: every bin, but only bin 0 in still dimensions."""
    first = torch.arange(bins, device=low.device) == 0
    return ~still_dimensions(low, high)[:, None] | first


def fractional_token(action: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Real-valued token positions ``[..., A]`` in [0, bins - 1] of actions; 0 in still dimensions."""
    spacing = bin_spacing(low, high, bins)
    position = (action - low) / torch.where(spacing > 0, spacing, 1.0)
    return torch.where(spacing > 0, position.clamp(0, bins - 1), 0.0)


def encode(action: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Nearest tokens of actions, int64 ``[..., A]`` in [0, bins)."""
    return fractional_token(action, low, high, bins).round().long()


def decode(token: Tensor, low: Tensor, high: Tensor, bins: int, *, bounds: tuple[Tensor, Tensor]) -> Tensor:
    """Centres of tokens ``[..., A]``, the constant in still dimensions, never outside ``bounds``."""
    still = still_dimensions(low, high)
    action = torch.where(still, 0.5 * (low + high), low + token * bin_spacing(low, high, bins))
    return action.clamp(*bounds)


def soft_target(action: Tensor, low: Tensor, high: Tensor, *, bins: int, width: float) -> Tensor:
    """Gaussian label ``[..., A, bins]`` over the bins around an action's exact position; it sums to 1.

    A one-hot label treats a neighbouring bin like any other, and leaves no width for exploration. ``width`` is the
    standard deviation in bins; 0 gives the one-hot label.
    """
    if width == 0:
        return torch.nn.functional.one_hot(encode(action, low, high, bins), bins).to(action.dtype)
    position = fractional_token(action, low, high, bins)
    index = torch.arange(bins, device=action.device, dtype=action.dtype)
    score = -0.5 * ((index - position[..., None]) / width) ** 2
    score = score.masked_fill(~allowed_bins(low, high, bins), -torch.inf)
    return score.softmax(dim=-1)


def inverse_cdf(probability: Tensor, uniform: Tensor) -> Tensor:
    """Sample bins ``[...]`` of ``probability`` ``[..., bins]`` by inversion at ``uniform``; never one of 0."""
    cdf = probability.double().cumsum(dim=-1)  # in float64 the CPU and a GPU, which add in other orders, agree
    cdf = cdf / cdf[..., -1:]  # ends at exactly 1, above every uniform draw
    return (cdf <= uniform.double()[..., None]).sum(dim=-1)
