"""IQL (Kostrikov et al. 2022): an expectile estimates the best recorded action; no other action is ever valued.

V: mean_b L_τ(min_i Q̄_i(s, a) − V(s)), L_τ(u) = |τ − 1[u < 0]| u² Q: Σ_i mean_b (Q_i(s, a) − r − γ (1 − terminated)
V(s'))² actor: −mean_b min(exp(β (min_i Q̄_i(s, a) − V(s))), w_max) log π(a|s)
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import (
    Agent,
    Facts,
    adam,
    cosine,
    gradient_step,
    pieces,
    polyak,
    require_rules,
    set_rate,
)
from worldrl.methods.offline.networks import BoundedActor, StackedCritic, ValueNet, normal_log_prob
from worldrl.methods.offline.targets import td_loss, td_target


@dataclass(frozen=True)
class WeightedCloningConfig:
    """Settings common to IQL, f-DVL and ReCOIL; defaults are IQL's for locomotion."""

    hidden: tuple[int, ...] = (256, 256)  # widths of hidden layers, all networks.
    temperature: float = 3.0  # β, inverse temperature of the advantage weights.
    largest_weight: float = 100.0  # w_max.
    discount: float = 0.99  # γ.
    polyak: float = 0.005  # rate of the target critics.
    learning_rate: float = 3e-4  # of all Adams.
    # the actor's rate falls along a cosine to 0 over the offline updates; online it is constant.
    actor_cosine: bool = True

    def __post_init__(self) -> None:
        rules = {
            "zero or more": "temperature",
            "positive": "largest_weight learning_rate",
            "in [0, 1]": "discount",
            "in (0, 1]": "polyak",
        }
        require_rules(self, "agent", rules)


@dataclass(frozen=True)
class IqlConfig(WeightedCloningConfig):
    """Settings of :class:`Iql`; defaults are the paper's for locomotion."""

    expectile: float = 0.7  # τ.
    # multiply rewards by the time limit over the range of recorded returns (1000 in the paper's tasks).
    scale_reward: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rules(self, "agent", {"in (0, 1)": "expectile"})


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """L_τ(u) = |τ − 1[u < 0]| u², element by element."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return weight * difference.square()


def advantage_weight(advantage: Tensor, temperature: float, largest: float) -> Tensor:
    """min(exp(β A), w_max), without gradient."""
    return (temperature * advantage.detach()).exp().clamp(max=largest)


class Iql(Agent):
    """Implicit Q-learning with a Gaussian policy of a state-independent width."""

    name: ClassVar[str] = "iql"
    config_class: ClassVar[type[Any]] = IqlConfig

    def __init__(self, config: Any, facts: Facts) -> None:
        sizes = (facts.obs_size, facts.action_size, config.hidden)
        self.actor = BoundedActor(*sizes)
        self.critic = StackedCritic(*sizes, members=2)
        self.target_critic = copy.deepcopy(self.critic)
        self.values = ValueNet(facts.obs_size, config.hidden)
        self.scale = self.reward_scale(config, facts)
        nets = {"actor": self.actor, "critic": self.critic, "value": self.values}
        optimizers = {name: adam(net, config.learning_rate) for name, net in nets.items()}
        super().__init__(config, facts, nets | {"target_critic": self.target_critic}, optimizers)

    @classmethod
    def reward_scale(cls, config: Any, facts: Facts) -> float:
        """Return the factor on rewards."""
        return facts.reward_scale if config.scale_reward else 1.0

    @torch.no_grad()
    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose the mean, or a sample clipped to [-1, 1]."""
        mean, log_std = self.actor(obs)
        if generator is None:
            return mean
        noise = torch.randn(mean.shape, generator=self.draws(generator), device=mean.device)
        return (mean + log_std.exp() * noise).clamp(-1, 1)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-density ``[B]`` of actions, before the clipping."""
        return normal_log_prob(self.actor(obs), action)

    @torch.no_grad()
    def value(self, obs: Tensor) -> Tensor:
        """Predict the discounted return ``[B]`` of acting from ``obs``: V(s) in the data's own units."""
        return self.values(obs) / self.scale

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one step of value, actor and critics, then move the target critics."""
        advantage, logs = self._update_value(batch, generator)
        logs |= {"actor/loss": self._update_actor(batch, advantage).detach()}
        return logs | self._move_critics(batch)

    def update_parts(self, batch: Transitions, parts: int, *, generator: torch.Generator) -> Logs:
        """Take a step of value and critics on each part of the batch, then one of the actor on all of it."""
        logs: Logs = {}
        for part in pieces(batch, parts):
            logs |= self._update_value(part, generator)[1] | self._move_critics(part)
        with torch.no_grad():
            advantage, _ = self._advantage(batch)
        return logs | {"actor/loss": self._update_actor(batch, advantage).detach()}

    def _advantage(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return Q̄ − V and V, with gradient in V."""
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).min(dim=0).values
        value = self.values(batch.obs)
        return q - value, value

    def _update_value(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Logs]:
        advantage, value = self._advantage(batch)
        loss = self.value_loss(*self.value_rows(batch, advantage, value, generator))
        gradient_step(self.optimizers["value"], loss)
        q = (advantage + value).detach()
        numbers = {"value/loss": loss, "value/advantage": advantage.mean(), "critic/q": q.mean() / self.scale}
        return advantage, {name: number.detach() for name, number in numbers.items()}

    def _move_critics(self, batch: Transitions) -> Logs:
        loss = self._update_critic(batch)
        polyak(self.target_critic, self.critic, self.config.polyak)
        self.updates += 1
        return {"critic/td": loss.detach()}

    def value_rows(
        self, batch: Transitions, advantage: Tensor, value: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return Q̄ − V and V of the rows that V learns from; here the batch's own."""
        return advantage, value

    def value_loss(self, advantage: Tensor, value: Tensor) -> Tensor:
        """Return the loss of V from Q̄ − V and V, ``[B]`` each."""
        return expectile_loss(advantage, self.config.expectile).mean()

    def _update_actor(self, batch: Transitions, advantage: Tensor) -> Tensor:
        weight = advantage_weight(advantage, self.config.temperature, self.config.largest_weight)
        loss = -(weight * self.log_prob(batch.obs, batch.action)).mean()
        share = cosine(self.updates, self.facts.updates) if self.config.actor_cosine else 1.0
        set_rate(self.optimizers["actor"], share * self.config.learning_rate)
        gradient_step(self.optimizers["actor"], loss)
        return loss

    def _update_critic(self, batch: Transitions) -> Tensor:
        with torch.no_grad():
            next_value = self.values(batch.next_obs)
            target = td_target(self.scale * batch.reward, batch.terminated, next_value, self.config.discount)
        loss = td_loss(self.critic(batch.obs, batch.action), target)
        gradient_step(self.optimizers["critic"], loss)
        return loss
