"""Gripper head: predicts the measured gripper opening of each frame, in which a held object shows.

In pixels that bit is a few tokens among thousands of numbers, and a model trained on pixels alone lifted objects that
it had not grasped. The head's gradient puts the grasp into the shared features; in imagination its findings are input
of the outcome head.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``G`` grippers, ``n`` tokens, ``d`` width.
"""

import torch
from torch import Tensor, nn

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp


class GripperHead(nn.Module):
    """One learned query per predicted frame attends to the dynamics' tokens."""

    def __init__(self, width: int, heads: int, frames: int, grippers: int = 1):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, width) / width**0.5)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.out = Mlp(width, width, max(1, grippers))  # at least one output, unused without grippers

    def find(self, features: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]``."""
        query = self.frame.expand(len(features), -1, -1)
        return self.norm(query + self.attention(query, features))

    def forward(self, features: Tensor) -> Tensor:
        """Return the openings ``[B, F, G]`` in the robot's ``opening_unit``."""
        return self.out(self.find(features))


def opening_loss(predicted: Tensor, opening: Tensor, valid: Tensor, unit: float) -> Tensor:
    """Mean squared error of ``predicted`` (in ``unit``) and measured openings ``[B, F, G]`` over ``valid`` frames ``[B, F]``."""
    error = (predicted - opening / unit).square() * valid[..., None]
    return error.sum() / (valid.sum().clamp_min(1) * predicted.shape[-1])
