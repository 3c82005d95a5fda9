"""Gripper head: how far apart will the fingers really be?

The commanded gripper follows from the actions; the measured one tells whether something is held, in the very chunk
in which the fingers close, long before a lift shows it in the picture. In pixels that bit is a handful of tokens among
thousands of numbers, and a model trained on pixels alone lifted what it had not grasped. The head's gradient makes the
shared features know the grasp; in imagination its findings go to the outcome head. Any robot with a gripper measures it.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``G`` grippers, ``n`` tokens, ``d`` width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp


class GripperHead(nn.Module):
    """One learned query per predicted frame attends over the dynamics' tokens.

    Args:
        width: feature width ``d`` of the dynamics.
        heads: attention heads.
        frames: frames ``F`` per chunk.
        grippers: ``G``.
    """

    def __init__(self, width: int, heads: int, frames: int, grippers: int = 1):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, width) / width**0.5)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.out = Mlp(width, width, max(1, grippers))  # of a robot without grippers nobody asks

    def find(self, features: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]``."""
        query = self.frame.expand(len(features), -1, -1)
        return self.norm(query + self.attention(query, features))

    def forward(self, features: Tensor) -> Tensor:
        """Return the openings ``[B, F, G]`` in the robot's ``opening_unit``."""
        return self.out(self.find(features))


def opening_loss(predicted: Tensor, opening: Tensor, valid: Tensor, unit: float) -> Tensor:
    """Mean squared error over valid frames.

    Args:
        predicted: ``[B, F, G]`` in units.
        opening: measured, ``[B, F, G]``.
        valid: bool ``[B, F]``.
        unit: :attr:`worldrl.core.actions.ActionSpec.opening_unit`.

    Returns:
        A scalar.
    """
    error = (predicted - opening / unit).square() * valid[..., None]
    return error.sum() / (valid.sum().clamp_min(1) * predicted.shape[-1])
