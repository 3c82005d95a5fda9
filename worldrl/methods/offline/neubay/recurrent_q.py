r"""Double Q-learning with a memory, for a few actions: the agent of NEUBAY's bandit.

Ni et al., "Long-Horizon Model-Based Offline RL Without Conservatism" (2025). An encoder (linear, layer norm, leaky
ReLU, then the memory of :mod:`lru`) reads packed sequences; a duelling head gives a value per action::

    Q(h_t, ·) = V(h_t) + A(h_t, ·) - mean A(h_t, ·)
    y_t = r_t + γ (1 - terminated) Q̄(h̄_{t+1}, argmax Q(h_{t+1}, ·))          loss: Huber(Q(h_t, a_t) - y_t)

The encoder reads observation and previous action. Rewards enter the encoder through the observation alone; the
``reward`` column is for training, so a penalty on training rewards never enters the input.

Shapes legend: ``T`` packed rows, ``B`` rollouts, ``A`` actions (one-hot), ``d`` features.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.interfaces import Logs
from worldrl.methods.offline.agent import polyak
from worldrl.methods.offline.neubay.lru import Memory, MemoryConfig
from worldrl.methods.offline.neubay.packed_sequences import PackedSequences
from worldrl.methods.offline.neubay.recurrent_networks import block, small_linear
from worldrl.methods.offline.targets import td_target


@dataclass(frozen=True)
class RecurrentQConfig:
    """The paper's settings for the bandit."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)  # of the encoder.
    hidden: int = 256  # width of the head's layers.
    hidden_layers: int = 2  # how many.
    gamma: float = 0.99  # discount.
    tau: float = 0.005  # rate of the target network.
    encoder_lr: float = 3e-6  # learning rate up to the memory; recurrent encoders need far smaller ones than heads.
    head_lr: float = 1e-4  # learning rate of the head.
    clip_norm: float = 1.0  # largest gradient norm, of the encoder and of the head apart.


class RecurrentQ(nn.Module):
    """The network: ``[*R, T, S + A]`` to values ``[*R, T, A]``."""

    def __init__(self, obs_size: int, actions: int, config: RecurrentQConfig) -> None:
        super().__init__()
        width = config.memory.width
        self.read = block(obs_size + actions, width)
        self.memory = Memory(config.memory)
        sizes = [width] + [config.hidden] * config.hidden_layers
        self.body = nn.Sequential(*(block(a, b) for a, b in itertools.pairwise(sizes)))
        self.value, self.advantage = small_linear(sizes[-1], 1), small_linear(sizes[-1], actions)

    def forward(self, obs: Tensor, action: Tensor, reset: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return values ``[*R, T, A]`` and the memory after the last row."""
        h, after = self.memory(self.read(torch.cat([obs, action], -1)), reset, state)
        h = self.body(h)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True), after

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Parameters up to the memory."""
        return [*self.read.parameters(), *self.memory.parameters()]

    def head_parameters(self) -> list[nn.Parameter]:
        """Parameters after the memory."""
        return [*self.body.parameters(), *self.value.parameters(), *self.advantage.parameters()]


def double_q_target(q_next: Tensor, target_next: Tensor, reward: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """Return ``r + γ (1 - terminated) Q̄(argmax Q)`` ``[T]`` from online and target values ``[T, A]`` at the successors."""
    chosen = q_next.argmax(-1, keepdim=True)
    return td_target(reward, terminated, target_next.gather(-1, chosen).squeeze(-1), gamma)


class RecurrentQAgent:
    """Network, target and optimiser."""

    def __init__(self, obs_size: int, actions: int, config: RecurrentQConfig) -> None:
        self.config, self.actions = config, actions
        self.network = RecurrentQ(obs_size, actions, config)
        self.target = RecurrentQ(obs_size, actions, config).requires_grad_(False)
        self.target.load_state_dict(self.network.state_dict())
        groups = [
            {"params": self.network.encoder_parameters(), "lr": config.encoder_lr},
            {"params": self.network.head_parameters(), "lr": config.head_lr},
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def act(
        self, obs: Tensor, action: Tensor, state: Tensor | None, *, epsilon: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Choose one action per rollout, int64 ``[B]``, with probability ``epsilon`` at random, and return the memory.

        ``action``: the last ones, one-hot ``[B, A]``, zeros at the start; ``state``: the memory, None at the start.
        """
        reset = torch.full((len(obs), 1), state is None)
        q, after = self.network(obs[:, None], action[:, None], reset, state)
        uniform = torch.randint(self.actions, (len(obs),), generator=generator)
        explore = torch.rand(len(obs), generator=generator) < epsilon
        return torch.where(explore, uniform, q[:, 0].argmax(-1)), after

    def update(self, packed: PackedSequences) -> Logs:
        """Take one gradient step on packed sequences, whose ``action`` column is one-hot."""
        q, _ = self.network(packed.obs, packed.action, packed.reset)
        with torch.no_grad():
            target_q, _ = self.target(packed.obs, packed.action, packed.reset)
            y = double_q_target(q[1:], target_q[1:], packed.reward[1:], packed.terminated[1:], self.config.gamma)
        chosen = (q[:-1] * packed.action[1:]).sum(-1)
        weight = packed.pairs.to(q.dtype)
        loss = (F.huber_loss(chosen, y, reduction="none") * weight).sum() / weight.sum()
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], self.config.clip_norm)
        self.optimizer.step()
        polyak(self.target, self.network, self.config.tau)
        return {"recurrent_q/loss": loss.detach(), "recurrent_q/q": (chosen.detach() * weight).sum() / weight.sum()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, target and optimiser."""
        return {name: getattr(self, name).state_dict() for name in ("network", "target", "optimizer")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for name in ("network", "target", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
