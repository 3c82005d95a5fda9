"""Joint success head: does this frame fulfil the instruction, as far as its chunk tells?

It reads the dynamics transformer's features at the noise level in hand, so one forward pass gives frames and
their success together (World-VLA-Loop's r̂ = φ(z)). The instruction reaches the model here and nowhere else. Its loss
shapes the dynamics' features; in imagination its findings go to the outcome head, which decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp
from worldrl.nn.text import InstructionEncoder

TEXT_WIDTH = 64


class SuccessHead(nn.Module):
    """One query per predicted frame, made of the instruction, attends over the dynamics' tokens.

    The instruction also gates what was found: without the product, a head trained 3,000 steps still answered "something
    was lifted" to every instruction.

    Args:
        width: feature width ``d`` of the dynamics.
        heads: attention heads.
        frames: frames ``F`` per chunk.
    """

    def __init__(self, width: int, heads: int, frames: int):
        super().__init__()
        self.instruction = InstructionEncoder(TEXT_WIDTH)
        self.instruction_out = nn.Linear(TEXT_WIDTH, width)
        self.frame = nn.Parameter(0.02 * torch.randn(frames, width))
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.gate = nn.Linear(width, width)
        self.norm_out = nn.LayerNorm(width)
        self.out = Mlp(width, width, 1)

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` sentences as ``[B, d]``; constant over a rollout, so callers keep it."""
        return self.instruction_out(self.instruction(instruction))

    def find(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]`` and embedded instructions ``[B, d]``."""
        query = embedded[:, None] + self.frame
        found = self.attention(self.norm(query), features)
        gated = self.norm_out(found) * (1 + self.gate(embedded))[:, None]
        return query + gated

    def forward(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return logits ``[B, F]``."""
        return self.out(self.find(features, embedded)).squeeze(-1)


def success_loss(
    logit: Tensor, success: Tensor, valid: Tensor, level: Tensor, positive_weight: float, noise_weight: float
) -> Tensor:
    """Cross-entropy over valid frames, weighted down at high noise.

    Args:
        logit: ``[B, F]``.
        success: bool ``[B, F]``.
        valid: bool ``[B, F]``.
        level: of noise in [0, 1], ``[B, F]`` or ``[B, 1]``.
        positive_weight: weight of success frames.
        noise_weight: how much less a frame weighs in pure noise: its weight is 1 - ``noise_weight`` · level. Half
            by default: the outcome of nearly deterministic dynamics is known in pure noise too, only less surely.

    Returns:
        A scalar.
    """
    weight = valid.float() * (1 - noise_weight * level) * torch.where(success, positive_weight, 1.0)
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (weight * loss).sum() / weight.sum().clamp_min(1e-6)
