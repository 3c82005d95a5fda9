"""Gripper head: how far apart will the fingers really be?

The commanded gripper follows from the actions; the measured one tells whether something is held, in the very chunk
in which the fingers close, long before a lift shows it in the picture. In pixels that bit is a handful of tokens among
thousands of numbers, and a model trained on pixels alone lifted what it had not grasped. The head's gradient makes the
shared features know the grasp; in imagination its findings go to the outcome head. Any robot with a gripper measures it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp

OPENING_UNIT = 0.02
"""Unit of the head's output (m): about the difference between holding a small object and holding nothing."""


class GripperHead(nn.Module):
    """One learned query per predicted frame attends over the dynamics' tokens.

    Args:
        width: feature width ``d`` of the dynamics.
        heads: attention heads.
        frames: frames ``F`` per chunk.
    """

    def __init__(self, width: int, heads: int, frames: int):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, width) / width**0.5)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.out = Mlp(width, width, 1)

    def find(self, features: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]``."""
        query = self.frame.expand(len(features), -1, -1)
        return self.norm(query + self.attention(query, features))

    def forward(self, features: Tensor) -> Tensor:
        """Return the opening ``[B, F]`` in units of :data:`OPENING_UNIT`."""
        return self.out(self.find(features)).squeeze(-1)


def opening_loss(predicted: Tensor, opening: Tensor, valid: Tensor) -> Tensor:
    """Mean squared error over valid frames.

    Args:
        predicted: ``[B, F]`` in units of :data:`OPENING_UNIT`.
        opening: measured, ``[B, F]`` (m).
        valid: bool ``[B, F]``.

    Returns:
        A scalar.
    """
    error = (predicted - opening / OPENING_UNIT).square() * valid
    return error.sum() / valid.sum().clamp_min(1)
