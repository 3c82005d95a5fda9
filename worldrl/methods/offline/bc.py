"""Behaviour cloning: min_π E_{(s, a)~D} ‖π(s) − a‖²."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Agent, Facts, Standardise, adam, gradient_step, require_rules
from worldrl.methods.offline.networks import DeterministicActor


@dataclass(frozen=True)
class BcConfig:
    """Settings of :class:`Bc`; defaults as CORL's."""

    hidden: tuple[int, ...] = (256, 256)  # widths of the actor's hidden layers.
    learning_rate: float = 3e-4  # of Adam.

    def __post_init__(self) -> None:
        require_rules(self, "agent", {"positive": "learning_rate"})


def unit_log_prob(mean: Tensor, action: Tensor) -> Tensor:
    """Log-density ``[B]`` of a unit Gaussian around a deterministic action, as policy guidance uses it."""
    return -0.5 * (action - mean).square().sum(dim=-1) - 0.5 * math.log(2 * math.pi) * action.shape[-1]


class Bc(Agent):
    """Behaviour cloning with a deterministic actor on standardised observations."""

    name: ClassVar[str] = "bc"
    config_class: ClassVar[type[BcConfig]] = BcConfig

    def __init__(self, config: BcConfig, facts: Facts) -> None:
        self.scale = Standardise(facts.obs_mean, facts.obs_std)
        self.actor = DeterministicActor(facts.obs_size, facts.action_size, config.hidden)
        self.optimizer = adam(self.actor, config.learning_rate)
        super().__init__(config, facts, {"scale": self.scale, "actor": self.actor}, {"actor": self.optimizer})

    @torch.no_grad()
    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Return π(s), whatever the generator."""
        return self.actor(self.scale(obs))

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-density ``[B]`` of actions under a unit Gaussian around π(s)."""
        return unit_log_prob(self.actor(self.scale(obs)), action)

    def take_step(self, batch: Transitions, draws: torch.Generator) -> Logs:
        """Take one step towards the recorded actions."""
        loss = (self.actor(self.scale(batch.obs)) - batch.action).square().mean()
        gradient_step(self.optimizer, loss)
        return {"actor/clone": loss.detach()}
