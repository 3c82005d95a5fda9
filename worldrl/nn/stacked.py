"""Layers of ``M`` networks side by side: one batched matrix product serves the whole ensemble.

Shapes legend: ``M`` members, ``B`` rows, ``C`` channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """``M`` linear layers; weights are zero until one of the two initialisations below."""

    def __init__(self, members: int, channels: int, out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, channels, out))
        self.bias = nn.Parameter(torch.zeros(members, 1, out))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Map ``[M, B, C]`` to ``[M, B, out]``; with ``members`` (int64 ``[m]``) only those, from ``[m, B, C]``."""
        weight, bias = (self.weight, self.bias) if members is None else (self.weight[members], self.bias[members])
        return torch.baddbmm(bias, x, weight)


class StackedLayerNorm(nn.Module):
    """``M`` layer norms over the last axis, each with its own scale and shift."""

    def __init__(self, members: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, channels))
        self.bias = nn.Parameter(torch.zeros(members, 1, channels))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Normalise ``[M, B, C]``."""
        weight, bias = (self.weight, self.bias) if members is None else (self.weight[members], self.bias[members])
        return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:]), weight)


def truncated_normal(layer: StackedLinear) -> None:
    """Draw weights as PETS does: normal with deviation 1/(2 √fan_in), cut off at two deviations; biases zero."""
    std = 0.5 * layer.weight.shape[1] ** -0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)


def fan_in_uniform(layer: StackedLinear) -> None:
    """Draw weights and biases as ``nn.Linear`` does, uniformly within 1/√fan_in."""
    bound = layer.weight.shape[1] ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.uniform_(layer.bias, -bound, bound)
