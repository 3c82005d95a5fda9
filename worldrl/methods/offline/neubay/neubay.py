r"""NEUBAY (Ni et al. 2025): a recurrent soft actor-critic with a randomised ensemble, trained on long imagined rollouts.

No pessimism: the policy with a memory maximises the expected return over the posterior of worlds, of which each
rollout belongs to one (:mod:`long_rollouts`). Actor and critics read packed sequences through encoders of their own, h, c::

    y_t = r_t + γ (1 - terminated) [min_{i ∈ I} Q̄_i(c̄_{t+1}, a') - α log π(a'|h_{t+1})],   I: 2 of 10, a' ~ π
    critic:       mean_i Huber(Q_i(c_t, a_t) - y_t)
    actor:        α log π(a|h_t) - mean_i Q_i(c_t, a)
    temperature:  -log α (log π(a|h_t) + H̄),   H̄ = -dim(a); or α fixed
    each:         κ · mean over recorded steps + (1 - κ) · mean over imagined ones

The actor may begin as a clone of the recorded steps (:mod:`cloning`, with h_t for s).

κ weighs losses and does not change sampling. Encoders learn far more slowly than heads: through a recurrence a
small change of weights moves the features of all later rows.

Shapes legend: ``T`` packed rows, ``B`` rollouts, ``S`` observation, ``A`` action, ``N`` critics, ``d`` features.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import require_value
from worldrl.core.interfaces import Logs
from worldrl.methods.offline.agent import Agent, Facts, cosine, gradient_step, polyak, require_rules
from worldrl.methods.offline.cloning import CLONING, cloning_loss, phase_of, require_time_to_learn
from worldrl.methods.offline.networks import Gaussian, squashed_sample
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.packed_sequences import PackedSequences
from worldrl.methods.offline.neubay.recurrent_networks import RecurrentActor, RecurrentCritic
from worldrl.methods.offline.sac import Temperature, soft_target
from worldrl.methods.offline.targets import bounded, require_bounds


@dataclass(frozen=True)
class NeubayConfig:
    """Settings of :class:`Neubay`; defaults are the paper's for D4RL locomotion."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)  # of each encoder.
    hidden: tuple[int, ...] = (256, 256)  # widths of the heads (Adroit: three layers).
    critics: int = 10  # members N.
    target_critics: int = 2  # members of which the target takes the minimum, drawn anew at each update.
    discount: float = 0.99  # γ.
    polyak: float = 0.005  # rate τ of the target critic, its encoder included.
    # learning rate of both encoders; the paper tunes it per dataset (:mod:`settings_by_dataset`).
    encoder_rate: float = 1e-5
    head_rate: float = 1e-4  # learning rate of the heads and of log α; the actor's rates fall along a cosine to 0.
    # learning rate of the actor's head, null for head_rate; its encoder's rate scales alike.
    actor_rate: float | None = None
    kappa: float = 0.5  # κ, weight of recorded steps in every loss; tuned per dataset.
    temperature: float | None = None  # a fixed α; null learns it.
    # α at the beginning where it is learned (published: 0.1 for Adroit, 1e-5 for AntMaze).
    initial_temperature: float = 0.2
    entropy_per_action: float = 1.0  # H̄ = -entropy_per_action · dim(a) (AntMaze: 10).
    clip_norm: float = 1000.0  # largest gradient norm (Adroit: 1e4, AntMaze: 1).
    floor: float | None = None  # smallest target; null for none.
    ceiling: float | None = None  # largest target; null for none.
    clone_steps: int = 0  # first updates, in which the actor clones the recorded steps.
    clone_rate: float = 1e-3  # learning rate of the actor's head meanwhile.

    def __post_init__(self) -> None:
        require_value(len(self.hidden) > 0, "agent.hidden", "at least one width", self.hidden)
        require_value(
            1 <= self.target_critics <= self.critics, "agent.target_critics", "in [1, critics]", self.target_critics
        )
        rules = {
            "in [0, 1]": "discount kappa",
            "in (0, 1]": "polyak",
            "zero or more": "encoder_rate clone_steps",
            "positive": "head_rate temperature initial_temperature clip_norm actor_rate clone_rate",
        }
        require_rules(self, "agent", rules)
        require_bounds(self.floor, self.ceiling)


# --- mathematics ----------------------------------------------------------------------------------------------------


def kappa_mean(loss: Tensor, real: Tensor, pairs: Tensor, kappa: float) -> Tensor:
    """κ · mean over recorded transitions + (1 - κ) · mean over imagined ones; an absent kind counts as zero.

    ``loss``, ``real`` and ``pairs`` (which pairs of rows are transitions) are ``[T - 1]``.
    """

    def mean(mask: Tensor) -> Tensor:
        weight = mask.to(loss.dtype)
        return (loss * weight).sum() / weight.sum().clamp(min=1)

    return kappa * mean(pairs & real) + (1 - kappa) * mean(pairs & ~real)


# --- agent ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecurrentState:
    """Memory of rollouts between two steps."""

    state: Tensor  # complex ``[B, layers, n]``.
    fresh: Tensor  # bool ``[B]``, the next row is an episode's first.

    def select(self, index: Tensor) -> "RecurrentState":
        """Return the rollouts of ``index``."""
        return RecurrentState(self.state[index], self.fresh[index])


class Neubay(Agent):
    """Acts on arrivals (observation, last action, last reward) and learns from packed sequences; see the module."""

    name: ClassVar[str] = "neubay"
    config_class: ClassVar[type[Any]] = NeubayConfig

    def __init__(self, config: NeubayConfig, facts: Facts) -> None:
        self.actor = RecurrentActor(facts, config.memory, config.hidden)
        self.critic = RecurrentCritic(facts, config.memory, config.hidden, config.critics)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        fixed = config.temperature is not None
        alpha = config.initial_temperature if config.temperature is None else config.temperature
        self.temperature = Temperature(alpha, math.inf)
        self.target_entropy = -config.entropy_per_action * facts.action_size
        nets: dict[str, nn.Module] = {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}
        optimizers = {name: _adam(nets[name], config) for name in nets if name != "temperature" or not fixed}
        super().__init__(config, facts, nets | {"target_critic": self.target_critic}, optimizers)

    # -- acting ------------------------------------------------------------------------------------------------------

    def begin(self, rollouts: int) -> RecurrentState:
        """Return empty memories."""
        state = self.actor.encoder.memory.initial_state(rollouts)
        return RecurrentState(state, torch.ones(rollouts, dtype=torch.bool, device=state.device))

    @torch.no_grad()
    def remember(self, packed: PackedSequences) -> RecurrentState:
        """Read histories ``[B, T, ...]``, right-aligned and begun by a reset, and return the memory after the last row.

        Rows of an empty history must all be resets; the memory is ``fresh`` where every row is.
        """
        _, state = self.actor.encoder(packed.obs, packed.action, packed.reward, packed.reset)
        fresh = packed.reset.all(-1)
        return RecurrentState(torch.where(fresh[:, None, None], torch.zeros_like(state), state), fresh)

    @torch.no_grad()
    def step(
        self, obs: Tensor, action: Tensor, reward: Tensor, memory: RecurrentState, *, generator: torch.Generator | None
    ) -> tuple[Tensor, RecurrentState]:
        """Choose actions ``[B, A]`` in [-1, 1] for arrivals, the most likely without ``generator``, and the memory."""
        features, state = self.actor.encoder(
            obs[:, None], action[:, None], reward[:, None], memory.fresh[:, None], memory.state
        )
        gaussian, after = self.actor.head(features[:, 0]), RecurrentState(state, torch.zeros_like(memory.fresh))
        if generator is None:
            return gaussian.mean.tanh(), after
        noise = torch.randn(gaussian.mean.shape, generator=self.draws(generator), device=obs.device)
        return (gaussian.mean + gaussian.log_std.exp() * noise).tanh(), after

    @torch.no_grad()
    def value(self, obs: Tensor) -> Tensor:
        """Predict the discounted return ``[B]`` of episodes from ``obs``: mean_i Q_i at the most likely action."""
        rows, reset = len(obs), torch.ones(len(obs), 1, dtype=torch.bool, device=obs.device)
        none, nothing = obs.new_zeros(rows, self.facts.action_size), obs.new_zeros(rows)
        action, _ = self.step(obs, none, nothing, self.begin(rows), generator=None)
        features, _ = self.critic.encoder(obs[:, None], none[:, None], nothing[:, None], reset)
        return self.critic.heads(features[:, 0], action).mean(0)

    # -- learning ----------------------------------------------------------------------------------------------------

    @classmethod
    def check(cls, config: NeubayConfig, facts: Facts) -> None:
        """SettingError where all updates would clone."""
        require_time_to_learn(config, facts)

    @property
    def phase(self) -> int:
        """CLONING or LEARNING, of the next update."""
        return phase_of(self.updates, self.config)

    def learn(self, packed: PackedSequences, *, generator: torch.Generator) -> Logs:
        """Take one step of critics, targets, actor and temperature on packed sequences of at least two rows."""
        draws = self.draws(generator)
        policy = self.actor.head(self.actor.encoder(packed.obs, packed.action, packed.reward, packed.reset)[0])
        logs = self._critic_step(packed, self.target(packed, policy, draws))
        polyak(self.target_critic, self.critic, self.config.polyak)
        cloning = self.phase == CLONING
        logs |= self._clone_step(packed, policy) if cloning else self._actor_step(packed, policy, draws)
        self.updates += 1
        return logs

    @torch.no_grad()
    def target(self, packed: PackedSequences, policy: Gaussian, draws: torch.Generator) -> Tensor:
        """Return y ``[T - 1]`` of every pair of rows; pairs across a border are masked later."""
        noise = torch.randn(policy.mean.shape, generator=draws, device=packed.obs.device)
        action, logp = squashed_sample(policy, noise)
        chosen = torch.randperm(self.config.critics, generator=draws, device=packed.obs.device)
        features, _ = self.target_critic.encoder(packed.obs, packed.action, packed.reward, packed.reset)
        next_q = self.target_critic.heads(features[1:], action[1:], chosen[: self.config.target_critics])
        alpha, discount = self.temperature.alpha, self.config.discount
        y = soft_target(packed.reward[1:], packed.terminated[1:], next_q, logp[1:], alpha=alpha, discount=discount)
        return bounded(y, self.config.floor, self.config.ceiling)

    def _mean(self, loss: Tensor, packed: PackedSequences) -> Tensor:
        return kappa_mean(loss, packed.real[1:], packed.pairs, self.config.kappa)

    def _critic_step(self, packed: PackedSequences, target: Tensor) -> Logs:
        features, _ = self.critic.encoder(packed.obs, packed.action, packed.reward, packed.reset)
        q = self.critic.heads(features[:-1], packed.action[1:])
        loss = self._mean(F.huber_loss(q, target.expand_as(q), reduction="none").mean(0), packed)
        self._descend("critic", loss)
        value = q.detach().mean(0)
        return {
            "critic/loss": loss.detach(),
            "critic/q": self._mean(value, packed),
            "critic/target": self._mean(target, packed),
        }

    def _actor_step(self, packed: PackedSequences, policy: Gaussian, draws: torch.Generator) -> Logs:
        with torch.no_grad():
            features, _ = self.critic.encoder(packed.obs, packed.action, packed.reward, packed.reset)
        noise = torch.randn(policy.mean.shape, generator=draws, device=packed.obs.device)
        action, logp = squashed_sample(policy, noise)
        q = self.critic.heads(features[:-1], action[:-1]).mean(0)
        loss = self._mean(self.temperature.alpha * logp[:-1] - q, packed)
        slower = 1.0 if self.config.actor_rate is None else self.config.actor_rate / self.config.head_rate
        self._pace_actor(slower * cosine(self.updates, self.facts.updates))
        self._descend("actor", loss)
        entropy = -self._mean(logp.detach()[:-1], packed)
        if "temperature" in self.optimizers:
            self._descend("temperature", self.temperature.log_alpha * (entropy - self.target_entropy))
        return {"actor/loss": loss.detach(), "actor/entropy": entropy, "actor/alpha": self.temperature.alpha}

    def _clone_step(self, packed: PackedSequences, policy: Gaussian) -> Logs:
        recorded = (packed.pairs & packed.real[1:]).nonzero()[:, 0]
        if not len(recorded):
            return {}
        loss = cloning_loss(Gaussian(policy.mean[recorded], policy.log_std[recorded]), packed.action[recorded + 1])
        self._pace_actor(self.config.clone_rate / self.config.head_rate)
        self._descend("actor", loss)
        return {"actor/clone": loss.detach()}

    def _pace_actor(self, share: float) -> None:
        for group in self.optimizers["actor"].param_groups:
            group["lr"] = group["initial_lr"] * share

    def _descend(self, name: str, loss: Tensor) -> None:
        gradient_step(self.optimizers[name], loss, self.config.clip_norm)


def _adam(net: nn.Module, config: NeubayConfig) -> torch.optim.Optimizer:
    """Adam with a slower group for the encoder, where there is one."""
    slow = [p for name, p in net.named_parameters() if name.startswith("encoder.")]
    fast = [p for name, p in net.named_parameters() if not name.startswith("encoder.")]
    rates = ((slow, config.encoder_rate), (fast, config.head_rate))
    groups = [{"params": part, "lr": rate, "initial_lr": rate} for part, rate in rates if part]
    return torch.optim.Adam(groups, fused=True)
