"""Multi-head attention over token sequences.

Shapes legend: ``B`` rows, ``n`` query tokens, ``m`` key tokens, ``d`` width, ``H`` heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_KEYS = 16
"""Fewer keys are normalised with the queries last."""


class HeadNorm(nn.Module):
    """Root-mean-square norm over the last axis in the input's own dtype (autocast included)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., width]``."""
        # torch's rms_norm is a chain of operators on the CPU: in bfloat16 three times slower, forward and backward.
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (x.shape[-1] ** 0.5 / (size + 1e-6)) * self.weight.to(x.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention over ``[B, H, n, d/H]`` queries and ``[B, H, m, d/H]`` keys and values."""
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value)
    # torch's fused kernel takes half of a training step in its backward pass over 64 tokens, two matrix products 5 %.
    if key.shape[-2] < FEW_KEYS:  # a softmax over a short last axis is not vectorised; over the axis before it is
        logits = key @ query.transpose(-2, -1) * query.shape[-1] ** -0.5  # [B, H, m, n]
        return logits.softmax(dim=-2).to(value.dtype).transpose(-2, -1) @ value
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5  # [B, H, n, m]
    return logits.softmax(dim=-1).to(value.dtype) @ value


class Attention(nn.Module):
    """Attention with RMS-normalised queries and keys, so that logits stay bounded in long trainings."""

    def __init__(self, width: int, heads: int, context_width: int | None = None):
        super().__init__()
        self.heads = heads
        context_width = width if context_width is None else context_width
        self.to_query = nn.Linear(width, width, bias=False)
        self.to_key_value = nn.Linear(context_width, 2 * width, bias=False)
        self.query_norm = HeadNorm(width // heads)
        self.key_norm = HeadNorm(width // heads)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend from ``tokens`` ``[B, n, d]`` to ``context`` ``[B, m, d_c]`` (to themselves when None)."""
        key, value = self.to_key_value(tokens if context is None else context).chunk(2, dim=-1)
        query = self.query_norm(self._split(self.to_query(tokens)))
        key = self.key_norm(self._split(key))
        mixed = attend(query, key, self._split(value))  # [B, H, n, d/H]
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, n, d/H]
