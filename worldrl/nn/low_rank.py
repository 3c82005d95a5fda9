"""LoRA (Hu et al. 2022, 2106.09685): low-rank additions to a network's frozen matrices are trained.

Each linear layer computes with ``W + (α / r) U D``; ``D`` ``[r, in]`` begins random, ``U`` ``[out, r]`` at zero. After
training the sum replaces the matrix, so the network's folder needs no extra reader. The additions are torch
parametrisations, which copies and checkpoints support. Wan's transformer stores them apart and uses peft.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights


@dataclass
class LowRankConfig:
    """Settings of the additions."""

    rank: int = 0  # ``r``; 0 trains all weights instead.
    alpha: float = 32.0  # α.

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise SettingError(f"lora.rank must be 0 (all weights) or more, got {self.rank}")
        if self.alpha <= 0:
            raise SettingError(f"lora.alpha must be positive, got {self.alpha}")


class LowRankAddition(nn.Module):
    """Adds ``(α / r) U D`` to a matrix ``[out, in]``; the rank is positive."""

    def __init__(self, matrix: Tensor, config: LowRankConfig) -> None:
        super().__init__()
        self.scale = config.alpha / config.rank
        self.down = nn.Parameter(matrix.new_empty(config.rank, matrix.shape[1]))
        self.up = nn.Parameter(matrix.new_zeros(matrix.shape[0], config.rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as a linear layer's weights

    def forward(self, matrix: Tensor) -> Tensor:
        """Return the sum."""
        return matrix + self.scale * (self.up @ self.down)


def add_low_rank(network: nn.Module, within: nn.Module, config: LowRankConfig, *, seed: int) -> None:
    """Freeze ``network`` and add a trainable low-rank matrix to every linear layer of its part ``within``.

    No output changes; rank 0 changes nothing. Raises SettingError: a rank above a layer's smaller side saves nothing.
    """
    if not config.rank:
        return
    layers = [(name, layer) for name, layer in within.named_modules() if isinstance(layer, nn.Linear)]
    for name, layer in layers:
        if config.rank > min(layer.weight.shape):
            raise SettingError(
                f"lora.rank: {config.rank} is above a side of {name} {tuple(layer.weight.shape)}; lower it"
            )
    network.requires_grad_(False)
    with initial_weights(seed, "low-rank"):
        for _, layer in layers:
            parametrize.register_parametrization(layer, "weight", LowRankAddition(layer.weight, config))


@torch.no_grad()
def merge_low_rank(network: nn.Module) -> None:
    """Replace each matrix by its sum and make the whole network trainable; without additions only the latter."""
    for layer in list(network.modules()):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight")
    network.requires_grad_(True)


def trained_share(network: nn.Module) -> float:
    """Share of a network's parameters that are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in network.parameters()]
    return sum(size for size, trained in sizes if trained) / sum(size for size, _ in sizes)
