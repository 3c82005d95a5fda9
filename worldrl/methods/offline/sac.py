"""SAC (Haarnoja et al. 2018) with ``N`` critics: the base of the model-based methods and of the critic ensembles.

    y = r + γ (1 − terminated) [min_i Q̄_i(s', a') − α log π(a'|s')],   a' ~ π(·|s')
    critic:       Σ_i mean_b (Q_i(s, a) − y)²
    actor:        mean_b α log π(a|s) − min_i Q_i(s, a)
    temperature:  −log α · mean_b (log π(a|s) + H̄),   H̄ = −dim(a)

Order of an update: temperature, actor, critics, targets, as in EDAC and RAVL (SAC itself begins with the critics).
One draw of actions serves temperature and actor. The actor may begin as a clone of the data (:mod:`cloning`).
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from worldrl.core.errors import require_value
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
from worldrl.methods.offline.cloning import CLONING, cloning_loss, phase_of, require_time_to_learn
from worldrl.methods.offline.networks import (
    SquashedActor,
    StackedCritic,
    frozen,
    least_q,
    squashed_log_prob,
    squashed_sample,
)
from worldrl.methods.offline.targets import bounded, require_bounds, td_loss, td_target


@dataclass(frozen=True)
class SacConfig:
    """Settings of :class:`Sac`; defaults are those of OfflineRL-Kit's model-based agents."""

    hidden: tuple[int, ...] = (256, 256)  # widths of hidden layers, actor and critics.
    critics: int = 2  # members N.
    target_critics: int = 0  # members of which the target takes the minimum, drawn anew at each update; 0 takes all.
    layer_norm: bool = False  # normalise in the critics' hidden layers.
    actor_layer_norm: bool = False  # normalise in the actor's (WSRL's agent does both).
    entropy_backup: bool = True  # the target counts the next action's entropy.
    discount: float = 0.99  # γ.
    polyak: float = 0.005  # rate τ of the target critics.
    actor_rate: float = 1e-4  # learning rate of the actor.
    critic_rate: float = 3e-4  # learning rate of the critics.
    temperature_rate: float = 1e-4  # learning rate of log α; 0 keeps ``temperature``.
    temperature: float = 1.0  # α at the beginning.
    largest_temperature: float | None = 1.0  # bound on α; null for none.
    target_entropy: float | None = None  # H̄ in nats; null takes −dim(a).
    # the actor's learning rate falls along a cosine to 0 over the offline updates; online it is constant.
    actor_cosine: bool = True
    floor: float | None = None  # smallest target; null for none.
    ceiling: float | None = None  # largest target; null for none.
    clone_steps: int = 0  # first updates, in which the actor clones the recorded rows of a batch.
    clone_rate: float = 1e-3  # learning rate of the actor in these updates.

    def __post_init__(self) -> None:
        require_value(len(self.hidden) > 0, "agent.hidden", "at least one width", self.hidden)
        require_value(
            0 <= self.target_critics <= self.critics, "agent.target_critics", "in [0, critics]", self.target_critics
        )
        rules = {
            "at least 1": "critics",
            "in [0, 1]": "discount",
            "in (0, 1]": "polyak",
            "positive": "actor_rate critic_rate temperature clone_rate",
            "zero or more": "temperature_rate clone_steps",
        }
        require_rules(self, "agent", rules)
        require_bounds(self.floor, self.ceiling)


def soft_target(
    reward: Tensor, terminated: Tensor, next_q: Tensor, next_logp: Tensor, *, alpha: Tensor | float, discount: float
) -> Tensor:
    """Return r + γ (1 − terminated) [min_i Q̄_i − α log π], ``[B]``, of ``[N, B]``; ``alpha=0`` leaves entropy out."""
    return td_target(reward, terminated, next_q.min(dim=0).values - alpha * next_logp, discount)


def actor_loss(logp: Tensor, q: Tensor, alpha: Tensor) -> Tensor:
    """mean_b α log π − min Q: ``logp`` and ``q`` are ``[B]``."""
    return (alpha * logp - q).mean()


def temperature_loss(log_alpha: Tensor, logp: Tensor, target_entropy: float) -> Tensor:
    """−log α · mean_b (log π + H̄); ``logp`` counts as a constant."""
    return -(log_alpha * (logp.detach() + target_entropy)).mean()


class Temperature(nn.Module):
    """log α, so that α stays positive."""

    def __init__(self, initial: float, largest: float | None) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))
        self.largest = math.inf if largest is None else largest

    @property
    def alpha(self) -> Tensor:
        """α, a scalar without gradient."""
        return self.log_alpha.detach().exp().clamp(max=self.largest)


class Sac(Agent):
    """Soft actor-critic; subclasses change :meth:`target`, :meth:`critic_loss` and :meth:`actor_penalty`."""

    name: ClassVar[str] = "sac"
    config_class: ClassVar[type[Any]] = SacConfig

    def __init__(self, config: SacConfig, facts: Facts) -> None:
        sizes = (facts.obs_size, facts.action_size, config.hidden)
        self.actor = SquashedActor(*sizes, layer_norm=config.actor_layer_norm)
        self.critic = StackedCritic(*sizes, members=config.critics, layer_norm=config.layer_norm)
        self.target_critic = copy.deepcopy(self.critic)
        self.temperature = Temperature(config.temperature, config.largest_temperature)
        self.target_entropy = -float(facts.action_size) if config.target_entropy is None else config.target_entropy
        nets: dict[str, nn.Module] = {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}
        rates = {"actor": config.actor_rate, "critic": config.critic_rate, "temperature": config.temperature_rate}
        optimizers = {name: adam(net, rates[name]) for name, net in nets.items() if rates[name] > 0}
        super().__init__(config, facts, nets | {"target_critic": self.target_critic}, optimizers)

    # -- acting --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose tanh μ(s), or a sample."""
        gaussian = self.actor(obs)
        if generator is None:
            return gaussian.mean.tanh()
        noise = torch.randn(gaussian.mean.shape, generator=self.draws(generator), device=gaussian.mean.device)
        return (gaussian.mean + gaussian.log_std.exp() * noise).tanh()

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log-density ``[B]`` of actions, differentiable in both."""
        return squashed_log_prob(self.actor(obs), action)

    @torch.no_grad()
    def value(self, obs: Tensor) -> Tensor:
        """Predict the discounted return ``[B]`` of acting from ``obs``: min_i Q_i(s, tanh μ(s))."""
        return self.critic(obs, self.act(obs, generator=None)).min(dim=0).values

    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw actions with gradient, and their log-densities."""
        return self.policy(obs, torch.randn(len(obs), self.facts.action_size, generator=generator, device=obs.device))

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actions that standard normal ``noise [B, A]`` makes, with gradient, and their log-densities ``[B]``."""
        return squashed_sample(self.actor(obs), noise)

    # -- learning ------------------------------------------------------------------------------------------------

    @classmethod
    def check(cls, config: Any, facts: Facts) -> None:
        """SettingError where all updates would clone."""
        require_time_to_learn(config, facts)

    @property
    def phase(self) -> int:
        """CLONING or LEARNING, of the next update."""
        return phase_of(self.updates, self.config)

    def schedule(self) -> None:
        """Set the actor's learning rate: ``clone_rate``, then a cosine."""
        share = cosine(self.updates, self.facts.updates) if self.config.actor_cosine else 1.0
        rate = self.config.clone_rate if self.phase == CLONING else share * self.config.actor_rate
        set_rate(self.optimizers["actor"], rate)

    def take_step(self, batch: Transitions, draws: torch.Generator) -> Logs:
        """Take one step of temperature, actor and critics, then move the targets."""
        logs = self.clone(batch) if self.phase == CLONING else self.update_actor(batch, draws)
        logs |= self.update_critic(batch, self.target(batch, draws), draws)
        polyak(self.target_critic, self.critic, self.config.polyak)
        return logs

    def update_parts(self, batch: Transitions, parts: int, *, generator: torch.Generator) -> Logs:
        """Take a step of the critics on each part of the batch, then one of temperature and actor on all of it."""
        draws, logs = self.draws(generator), {}
        for part in pieces(batch, parts):
            logs |= self.update_critic(part, self.target(part, draws), draws)
            polyak(self.target_critic, self.critic, self.config.polyak)
            self.updates += 1
        self.schedule()
        return logs | self.update_actor(batch, draws)

    def clone(self, batch: Transitions) -> Logs:
        """Take a step of the actor towards the recorded actions of a batch; SettingError where it has none."""
        require_value(
            self.real > 0, "imagining.real_ratio", "above 0 with agent.clone_steps: there is nothing to clone", 0
        )
        loss = cloning_loss(self.actor(batch.obs[: self.real]), batch.action[: self.real])
        gradient_step(self.optimizers["actor"], loss)
        return {"actor/clone": loss.detach()}

    def update_actor(self, batch: Transitions, draws: torch.Generator) -> Logs:
        """Take a step of the temperature, then of the actor at the new temperature."""
        action, logp = self.sample(batch.obs, draws)
        if "temperature" in self.optimizers:
            gradient_step(
                self.optimizers["temperature"], temperature_loss(self.temperature.log_alpha, logp, self.target_entropy)
            )
        with frozen(self.critic):
            least, q = self.worth(batch.obs, action)
            loss = actor_loss(logp, least, self.temperature.alpha)
            penalty = self.actor_penalty(batch, draws)
            gradient_step(self.optimizers["actor"], loss if penalty is None else loss + penalty)
        return {
            "actor/loss": loss.detach(),
            "actor/entropy": -logp.detach().mean(),
            "actor/alpha": self.temperature.alpha,
            "critic/policy_q": q.mean(),
            "critic/policy_spread": effective_penalty(q).mean(),
        }

    def update_critic(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> Logs:
        """Take a step of all critics towards ``target [B]``."""
        loss, logs = self.critic_loss(batch, target, draws)
        gradient_step(self.optimizers["critic"], loss)
        return logs

    def worth(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return min_i Q_i(s, a) with its gradient, and all members' values ``[N, B]`` without."""
        return least_q(self.critic, obs, action)

    def target_of(self, batch: Transitions, noise: Tensor, kept: Tensor | None) -> Tensor:
        """Return y ``[B]`` with the next actions of ``noise``; ``kept`` are the target critics of the minimum (None: all)."""
        action, logp = self.policy(batch.next_obs, noise)
        next_q = self.target_critic(batch.next_obs, action)
        next_q = next_q if kept is None else next_q[kept]
        alpha = self.temperature.alpha if self.config.entropy_backup else 0.0
        y = soft_target(batch.reward, batch.terminated, next_q, logp, alpha=alpha, discount=self.config.discount)
        return bounded(y, self.config.floor, self.config.ceiling)

    def td_terms(self, batch: Transitions, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ_i mean_b (Q_i − y)², and the mean value without gradient."""
        q = self.critic(batch.obs, batch.action)
        return td_loss(q, target), q.detach().mean()

    # -- hooks ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def target(self, batch: Transitions, draws: torch.Generator) -> Tensor:
        """Return y ``[B]``."""
        device, kept = batch.obs.device, None
        noise = torch.randn(len(batch), self.facts.action_size, generator=draws, device=device)
        if self.config.target_critics:
            kept = torch.randperm(self.config.critics, generator=draws, device=device)[: self.config.target_critics]
        return self.target_of(batch, noise, kept)

    def critic_loss(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Return the critics' loss and what to log."""
        loss, q = self.td_terms(batch, target)
        return loss, {"critic/td": loss.detach(), "critic/q": q}

    def actor_penalty(self, batch: Transitions, draws: torch.Generator) -> Tensor | None:
        """Return a term that is added to the actor's loss, if there is one."""
        return None


def effective_penalty(q: Tensor) -> Tensor:
    """mean_i Q_i − min_i Q_i, ``[N, B]`` to ``[B]``: RAVL's diagnostic, large at edge-of-reach states."""
    return q.mean(dim=0) - q.min(dim=0).values
