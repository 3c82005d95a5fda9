"""Transformer blocks: a plain one for the codec, a modulated one for the dynamics.

The modulated block is Wan's (AdaLN-single): one shared projection of the time embedding gives six vectors. Each block
adds a small learned table to them, so modulation needs almost no parameters.
"""

import torch
from torch import Tensor, nn

from worldrl.nn.attention import Attention


class Mlp(nn.Sequential):
    """Two linear layers with a GELU between them: ``width`` to ``hidden`` to ``out`` (``width`` when None)."""

    def __init__(self, width: int, hidden: int, out: int | None = None):
        # Exact GELU: on a CPU torch's tanh approximation takes four to six times as long.
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width if out is None else out))


class Perceptron(nn.Sequential):
    """Three linear layers with GELUs between them: ``inputs`` to ``hidden``, twice, to ``outputs``."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        between = nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()
        super().__init__(*between, nn.Linear(hidden, outputs))


class Block(nn.Module):
    """Pre-norm self-attention and MLP on ``[B, n, d]``."""

    def __init__(self, width: int, heads: int, mlp_ratio: int = 4):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, mlp_ratio * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return updated tokens ``[B, n, d]``."""
        tokens = tokens + self.attention(self.norm_attention(tokens))
        return tokens + self.mlp(self.norm_mlp(tokens))


def in_compute_type(value: Tensor) -> Tensor:
    """Return ``value`` in autocast's number type where no gradient is recorded, else as it is.

    The sum over all blocks is then bfloat16 too: a rollout loses 0.02 dB at most, and a call costs a tenth less. In a
    training the sum stays float32, as its small steps would be rounded away.
    """
    kind = value.device.type
    if torch.is_grad_enabled() or not torch.is_autocast_enabled(kind):
        return value
    return value.to(torch.get_autocast_dtype(kind))


class ModulatedBlock(nn.Module):
    """Self-attention, cross-attention to action tokens, MLP; shift, scale and gate from the modulation."""

    def __init__(self, width: int, heads: int, mlp_ratio: int = 4):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.norm_cross = nn.LayerNorm(width, eps=1e-6)
        self.cross_attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.mlp = Mlp(width, mlp_ratio * width)
        self.table = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(self, tokens: Tensor, modulation: Tensor, context: Tensor) -> Tensor:
        """Update tokens ``[B, n, d]`` with ``modulation`` ``[B, 6, d]`` and action tokens ``context`` ``[B, m, d]``."""
        tokens, vectors = in_compute_type(tokens), in_compute_type(modulation + self.table)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = vectors.unsqueeze(2).unbind(1)
        attended = self.attention(self.norm_attention(tokens) * (1 + scale_a) + shift_a)
        tokens = tokens + gate_a * attended
        tokens = tokens + self.cross_attention(self.norm_cross(tokens), context)
        return tokens + gate_m * self.mlp(self.norm_mlp(tokens) * (1 + scale_m) + shift_m)
