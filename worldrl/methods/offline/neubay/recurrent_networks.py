"""Networks of the recurrent agents: an encoder with a memory, and heads without one.

Shapes legend: ``R`` leading axes, ``T`` packed rows, ``S`` observation, ``A`` action, ``N`` critics, ``d`` features.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.methods.offline.agent import Facts, Standardise
from worldrl.methods.offline.networks import LOG_STD_BOUNDS, Gaussian
from worldrl.methods.offline.neubay.lru import Memory, MemoryConfig
from worldrl.nn.stacked import StackedLayerNorm, StackedLinear, fan_in_uniform

SMALL = 0.01  # factor on the initial weights of the values' last layers, so that first values and targets are small


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Linear, layer norm, leaky ReLU."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.LeakyReLU())


def small_linear(inputs: int, outputs: int) -> nn.Linear:
    """A last layer that starts near zero."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.mul_(SMALL)
        layer.bias.zero_()
    return layer


class Encoder(nn.Module):
    """Arrivals to features: linear, layer norm, leaky ReLU, then the memory."""

    def __init__(self, facts: Facts, config: MemoryConfig) -> None:
        super().__init__()
        self.standardise = Standardise(facts.obs_mean, facts.obs_std)
        self.read = block(facts.obs_size + facts.action_size + 1, config.width)
        self.memory = Memory(config)

    def forward(
        self, obs: Tensor, action: Tensor, reward: Tensor, reset: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return features ``[*R, T, d]`` and the memory after the last row."""
        row = torch.cat([self.standardise(obs), action, reward.unsqueeze(-1)], -1)
        return self.memory(self.read(row), reset, state)


class ActorHead(nn.Module):
    """Features to the Gaussian before tanh."""

    def __init__(self, width: int, hidden: Sequence[int], action_size: int) -> None:
        super().__init__()
        sizes = [width, *hidden]
        self.body = nn.Sequential(*(block(m, n) for m, n in itertools.pairwise(sizes)))
        self.out = nn.Linear(sizes[-1], 2 * action_size)

    def forward(self, features: Tensor) -> Gaussian:
        """Map ``[..., d]``."""
        mean, log_std = self.out(self.body(features)).chunk(2, -1)
        return Gaussian(mean, log_std.clamp(*LOG_STD_BOUNDS))


class CriticHeads(nn.Module):
    """``N`` values of (features, action), in stacked weights: ``[T, d]``, ``[T, A]`` to ``[N, T]``."""

    def __init__(self, width: int, hidden: Sequence[int], action_size: int, members: int) -> None:
        super().__init__()
        sizes = [width + action_size, *hidden, 1]
        pairs = list(itertools.pairwise(sizes))
        self.members = members
        self.linears: Any = nn.ModuleList(StackedLinear(members, m, n) for m, n in pairs)
        self.norms: Any = nn.ModuleList(StackedLayerNorm(members, n) for n in hidden)
        for layer in self.linears:
            fan_in_uniform(layer)
        with torch.no_grad():
            for parameter in self.linears[-1].parameters():
                parameter.mul_(SMALL)

    def forward(self, features: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Value pairs by all members, or by those of ``members`` (int64)."""
        count = self.members if members is None else len(members)
        x = torch.cat([features, action], -1).expand(count, -1, -1)
        for linear, norm in zip(self.linears[:-1], self.norms, strict=True):
            x = F.leaky_relu(norm(linear(x, members), members))
        return self.linears[-1](x, members).squeeze(-1)


class RecurrentCritic(nn.Module):
    """Encoder and heads as one module, so one target covers both."""

    def __init__(self, facts: Facts, memory: MemoryConfig, hidden: Sequence[int], members: int) -> None:
        super().__init__()
        self.encoder = Encoder(facts, memory)
        self.heads = CriticHeads(memory.width, hidden, facts.action_size, members)


class RecurrentActor(nn.Module):
    """Encoder and head."""

    def __init__(self, facts: Facts, memory: MemoryConfig, hidden: Sequence[int]) -> None:
        super().__init__()
        self.encoder = Encoder(facts, memory)
        self.head = ActorHead(memory.width, hidden, facts.action_size)
