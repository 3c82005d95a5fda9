"""TD3+BC (Fujimoto & Gu 2021): TD3 whose actor also stays near the data.

y = r + γ (1 − terminated) min_{i=1,2} Q̄_i(s', ã), ã = clip(π̄(s') + clip(ε, ±c), ±1), ε ~ N(0, σ²) critic: Σ_i mean_b
(Q_i(s, a) − y)² actor: max_π λ Q_1(s, π(s)) − (π(s) − a)², λ = α / mean_b |Q_1(s, π(s))|
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Agent, Facts, Standardise, adam, gradient_step, polyak, require_rules
from worldrl.methods.offline.bc import unit_log_prob
from worldrl.methods.offline.networks import DeterministicActor, StackedCritic, frozen
from worldrl.methods.offline.targets import td_loss, td_target


@dataclass(frozen=True)
class Td3BcConfig:
    """Settings of :class:`Td3Bc`; defaults are the paper's."""

    hidden: tuple[int, ...] = (256, 256)  # widths of hidden layers, actor and critics.
    alpha: float = 2.5  # weight of the value against cloning.
    policy_noise: float = 0.2  # standard deviation σ of the target policy's noise.
    noise_clip: float = 0.5  # its bound c.
    exploration_noise: float = 0.1  # standard deviation of the noise on actions of online exploration.
    actor_every: int = 2  # critic updates per actor update.
    discount: float = 0.99  # γ.
    polyak: float = 0.005  # rate τ of the targets.
    learning_rate: float = 3e-4  # of both Adams.

    def __post_init__(self) -> None:
        rules = {
            "in [0, 1]": "discount",
            "in (0, 1]": "polyak",
            "at least 1": "actor_every",
            "positive": "learning_rate",
            "zero or more": "alpha policy_noise noise_clip exploration_noise",
        }
        require_rules(self, "agent", rules)


def smoothed(action: Tensor, noise: Tensor, *, std: float, clip: float) -> Tensor:
    """Target policy smoothing: ã = clip(a + clip(σ ε, ±c), ±1); all ``[B, A]``."""
    return (action + (std * noise).clamp(-clip, clip)).clamp(-1, 1)


def value_weight(q: Tensor, alpha: float) -> Tensor:
    """λ = α / mean |Q|, a constant: no gradient flows through it."""
    return alpha / q.detach().abs().mean()


class Td3Bc(Agent):
    """TD3+BC on standardised observations."""

    name: ClassVar[str] = "td3_bc"
    config_class: ClassVar[type[Td3BcConfig]] = Td3BcConfig

    def __init__(self, config: Td3BcConfig, facts: Facts) -> None:
        sizes = (facts.obs_size, facts.action_size, config.hidden)
        self.scale = Standardise(facts.obs_mean, facts.obs_std)
        self.actor = DeterministicActor(*sizes)
        self.critic = StackedCritic(*sizes, members=2)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = adam(self.actor, config.learning_rate)
        self.critic_optimizer = adam(self.critic, config.learning_rate)
        modules = {"scale": self.scale, "actor": self.actor, "critic": self.critic}
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        super().__init__(
            config, facts, modules | targets, {"actor": self.actor_optimizer, "critic": self.critic_optimizer}
        )

    @torch.no_grad()
    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Return π(s), whatever the generator."""
        return self.actor(self.scale(obs))

    def explore(self, obs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Choose clip(π(s) + N(0, σ_e²), ±1), as TD3 explores."""
        action = self.act(obs, generator=None)
        noise = torch.randn(action.shape, generator=self.draws(generator), device=action.device)
        return (action + self.config.exploration_noise * noise).clamp(-1, 1)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-density ``[B]`` of actions under a unit Gaussian around π(s)."""
        return unit_log_prob(self.actor(self.scale(obs)), action)

    @torch.no_grad()
    def value(self, obs: Tensor) -> Tensor:
        """Predict the discounted return ``[B]`` of acting from ``obs``: min_i Q_i(s, π(s))."""
        scaled = self.scale(obs)
        return self.critic(scaled, self.actor(scaled)).min(dim=0).values

    @property
    def phase(self) -> int:
        """1 where the actor learns too, every ``actor_every``-th time."""
        return int((self.updates + 1) % self.config.actor_every == 0)

    def take_step(self, batch: Transitions, draws: torch.Generator) -> Logs:
        """Take one critic step; in phase 1 also one actor step, and move the targets."""
        noise = torch.randn(batch.action.shape, generator=draws, device=batch.action.device)
        loss, q = self.critic_terms(batch, noise)
        gradient_step(self.critic_optimizer, loss)
        logs = {"critic/td": loss.detach(), "critic/q": q}
        if self.phase:
            logs |= self._update_actor(batch)
            polyak(self.target_actor, self.actor, self.config.polyak)
            polyak(self.target_critic, self.critic, self.config.polyak)
        return logs

    def critic_terms(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' loss, and their mean value without gradient."""
        target = self._target(batch, noise)
        q = self.critic(self.scale(batch.obs), batch.action)
        return td_loss(q, target), q.detach().mean()

    @torch.no_grad()
    def _target(self, batch: Transitions, noise: Tensor) -> Tensor:
        next_obs = self.scale(batch.next_obs)
        action = smoothed(self.target_actor(next_obs), noise, std=self.config.policy_noise, clip=self.config.noise_clip)
        next_value = self.target_critic(next_obs, action).min(dim=0).values
        return td_target(batch.reward, batch.terminated, next_value, self.config.discount)

    def _update_actor(self, batch: Transitions) -> Logs:
        with frozen(self.critic):
            loss, clone, weight = self.actor_terms(batch)
            gradient_step(self.actor_optimizer, loss)
        return {"actor/loss": loss.detach(), "actor/clone": clone, "actor/lambda": weight}

    def actor_terms(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actor's loss, and without gradient its cloning term and λ."""
        obs = self.scale(batch.obs)
        chosen = self.actor(obs)
        q = self.critic.member(0, obs, chosen)
        weight = value_weight(q, self.config.alpha)
        clone = (chosen - batch.action).square().mean()
        return clone - weight * q.mean(), clone.detach(), weight
