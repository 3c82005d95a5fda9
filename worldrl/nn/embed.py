"""Embeddings of scalars and positions as pure functions, and patches."""

import math

import torch
from torch import Tensor


def sinusoidal(x: Tensor, width: int, max_period: float = 10_000.0) -> Tensor:
    """Embed scalars ``[B]`` (any range, scaled by the caller) as ``[B, width]`` cosines and sines."""
    half = width // 2
    frequency = torch.exp(-math.log(max_period) * torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = x.float()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def patchify(frames: Tensor, patch: int) -> Tensor:
    """Cut images ``[..., 3, Y, X]`` into non-overlapping patches ``[..., (Y/p)(X/p), 3 p p]``."""
    cut = frames.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))  # [..., 3, h, p, w, p]
    return cut.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2)


def unpatchify(patches: Tensor, patch: int, height: int) -> Tensor:
    """Invert :func:`patchify`: ``[..., h w, 3 p p]`` to ``[..., 3, Y, X]``, with ``height = Y/p`` rows of patches."""
    grid = patches.unflatten(-1, (3, patch, patch)).unflatten(-4, (height, -1))  # [..., h, w, 3, p, p]
    return grid.movedim((-5, -4), (-4, -2)).flatten(-4, -3).flatten(-2)
