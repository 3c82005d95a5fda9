"""Joint success head: predicts whether each frame fulfils the instruction, from its chunk alone.

It reads the dynamics' features at the present noise level, so one forward pass gives frames and their success
(World-VLA-Loop's r̂ = φ(z)). Its loss shapes the dynamics' features; in imagination its findings are input of the
outcome head, which decides.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp
from worldrl.nn.text import InstructionEncoder

TEXT_WIDTH = 64


class SuccessHead(nn.Module):
    """One query per predicted frame, made of the instruction, attends to the dynamics' tokens; features have width ``d``."""

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
        """Encode ``B`` instructions as ``[B, d]``, constant over a rollout."""
        return self.instruction_out(self.instruction(instruction))

    def find(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]`` and embedded instructions ``[B, d]``."""
        query = embedded[:, None] + self.frame
        found = self.attention(self.norm(query), features)
        # Without this product, a head of 3,000 steps answered "something was lifted" to every instruction.
        gated = self.norm_out(found) * (1 + self.gate(embedded))[:, None]
        return query + gated

    def forward(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return logits ``[B, F]``."""
        return self.out(self.find(features, embedded)).squeeze(-1)


def success_loss(
    logit: Tensor, success: Tensor, valid: Tensor, level: Tensor, positive_weight: float, noise_weight: float
) -> Tensor:
    """Cross-entropy over valid frames ``[B, F]``, weighted down at high noise ``level`` ``[B, F]`` or ``[B, 1]``.

    A frame weighs 1 - ``noise_weight`` · level: nearly deterministic dynamics have a predictable outcome in noise too.
    """
    weight = valid.float() * (1 - noise_weight * level) * torch.where(success, positive_weight, 1.0)
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (weight * loss).sum() / weight.sum().clamp_min(1e-6)
