"""RAMBO (Rigter et al. 2022): the world learns against the policy while it stays likely under the data.

    min_φ  L_nll(φ; D) + λ E[ log p_φ(s', r|s, a) · Â ],   Â = standardised (r + γ (1 − terminated) Q(s', π(s')) − Q(s, a))

p_φ is the mixture of the elites; steps of large advantage become less likely. The policy begins as a clone of the data,
then is SAC on imagined rollouts. Every ``world_every`` updates the world takes ``world_steps`` steps along rollouts of
the present policy.

Shapes legend: ``B`` rows, ``S`` observation, ``m`` elites, ``D = S + 1`` targets (Δs, r).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts, gradient_step, require_rules
from worldrl.methods.offline.cloning import CLONING
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.targets import td_target
from worldrl.methods.offline.training import draw
from worldrl.world_models.state.config import EnsembleTraining
from worldrl.world_models.state.ensemble_training import make_optimizer


@dataclass(frozen=True)
class RamboConfig(SacConfig):
    """Settings of :class:`Rambo`; λ is 3e-4 or 0 by D4RL set."""

    adversary: float = 3e-4  # weight λ.
    world_rate: float = 3e-4  # learning rate of the world.
    world_every: int = 1000  # updates between two blocks of world steps.
    world_steps: int = 1000  # world steps per block.
    world_batch: int = 256  # rows per world step, imagined and recorded each.
    world_horizon: int = 5  # steps of the rollouts along which the world is trained.
    # weight decay of every layer of the world (OfflineRL-Kit: 2.5e-5 to 1e-4, growing with depth).
    world_decay: float = 7.5e-5
    bound_weight: float = 1e-3  # of Σ(max − min) of the ensemble's log-variance bounds.
    # first updates, which only clone the data into the actor; its critics wait, as published.
    clone_steps: int = 10_000
    clone_rate: float = 1e-4  # learning rate of the actor in these updates.

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = {
            "at least 1": "world_every world_steps world_batch world_horizon",
            "zero or more": "adversary",
            "positive": "world_rate",
        }
        require_rules(self, "agent", rules)


def mixture_log_prob(mean: Tensor, logvar: Tensor, sample: Tensor) -> Tensor:
    """Return log [1/m Σ_i N(x; μ_i, σ_i²)]: means and log-variances ``[m, B, D]``, ``sample [B, D]``, to ``[B]``."""
    square = (sample - mean).square() * (-logvar).exp()
    member = -0.5 * (square + logvar + math.log(2 * math.pi)).sum(dim=-1)  # [m, B]
    return torch.logsumexp(member, dim=0) - math.log(len(mean))


def standardised(advantage: Tensor) -> Tensor:
    """(Â − mean)/(std + 1e-6), ``[B]``."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-6)


def adversarial_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """E[log p · Â]; descending it makes advantageous steps less likely."""
    return (log_prob * standardised(advantage).detach()).mean()


class Rambo(Sac):
    """SAC in an ensemble that learns against it, in place; world and ``data`` are needed to learn only."""

    name: ClassVar[str] = "rambo"
    config_class: ClassVar[type[Any]] = RamboConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.5, refresh_every=250)
    needs: ClassVar[tuple[str, ...]] = ("world", "data")

    def __init__(self, config: RamboConfig, facts: Facts, *, world: Any = None, data: Any = None) -> None:
        super().__init__(config, facts)
        self.world, self.data = world, data
        self.world_optimizer: Any = None
        if world is not None:
            training = EnsembleTraining(learning_rate=config.world_rate, weight_decay=(config.world_decay,))
            self.world_optimizer = make_optimizer(world.ensemble, training)

    @property
    def imagines(self) -> bool:
        """False while it clones: only recorded rows are read then."""
        return self.phase != CLONING

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Clone at first; then train the world where a block is due, and the agent. SettingError without a world."""
        if self.world is None or self.data is None:
            raise SettingError(
                "rambo learns in an ensemble: make it with world=... and data=..., or choose world=ensemble"
            )
        draws = self.draws(generator)
        if self.phase == CLONING:
            return self._clone(len(batch), draws)
        due = (self.updates - self.config.clone_steps) % self.config.world_every == 0
        logs = self.train_world(draws) if due else {}
        return logs | super().update(batch, generator=draws, real=real)

    def _clone(self, count: int, draws: torch.Generator) -> Logs:
        rows = draw(self.data, count, generator=draws)  # half of a batch is imagined: the actor's own actions
        action, _ = self.sample(rows.obs, draws)  # the published loss
        self.schedule()
        loss = (action - rows.action).square().mean()
        gradient_step(self.optimizers["actor"], loss)
        self.updates += 1
        return {"actor/clone": loss.detach()}

    def train_world(self, draws: torch.Generator) -> Logs:
        """Take a block of world steps along rollouts of the policy; return means over the block."""
        logs: list[Logs] = []
        obs = self.data.obs[:0]
        for step in range(self.config.world_steps):
            if step % self.config.world_horizon == 0:
                obs = draw(self.data, self.config.world_batch, generator=draws).obs
            obs, entry = self.world_step(obs, draws)
            logs.append(entry)
        return {key: torch.stack([entry[key] for entry in logs]).mean() for key in logs[0]}

    def world_step(self, obs: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Take one step of the world at ``obs [B, S]``; return the sampled next observations and logs."""
        ensemble = self.world.ensemble
        action = self.act(obs, generator=draws)
        mean, logvar = ensemble.predict(obs, action, ensemble.elites)
        member = torch.randint(len(mean), (len(obs),), generator=draws, device=obs.device)
        row = torch.arange(len(obs), device=obs.device)
        noise = torch.randn(mean.shape[1:], generator=draws, device=obs.device)
        sample = (mean[member, row] + (0.5 * logvar[member, row]).exp() * noise).detach()
        next_obs = obs + sample[:, :-1]
        advantage = self.advantage(obs, action, sample[:, -1], next_obs)
        against = adversarial_loss(mixture_log_prob(mean, logvar, sample), advantage)
        likelihood = self._likelihood(draws)
        gradient_step(self.world_optimizer, likelihood + self.config.adversary * against)
        return next_obs, {"world/likelihood": likelihood.detach(), "world/adversarial": against.detach()}

    @torch.no_grad()
    def advantage(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor) -> Tensor:
        """Return r + γ (1 − terminated) min Q(s', tanh μ(s')) − min Q(s, a), ``[B]``."""
        terminated = self.world.termination(obs, action, next_obs)
        ahead = td_target(reward, terminated, self.value(next_obs), self.config.discount)
        return ahead - self.critic(obs, action).min(dim=0).values

    def _likelihood(self, draws: torch.Generator) -> Tensor:
        ensemble = self.world.ensemble
        rows = draw(self.data, self.config.world_batch, generator=draws)
        mean, logvar = ensemble(ensemble.inputs(rows.obs, rows.action).expand(ensemble.config.members, -1, -1))
        return ensemble.loss(mean, logvar, ensemble.targets(rows), self.config.bound_weight)

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimizers and counters, the world's among them."""
        if self.world is None:
            return super().state_dict()
        world = {"ensemble": dict(self.world.ensemble.state_dict()), "optimizer": self.world_optimizer.state_dict()}
        return super().state_dict() | {"world": world}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave, the world included."""
        super().load_state_dict(state)
        if self.world is not None:
            self.world.ensemble.load_state_dict(state["world"]["ensemble"])
            self.world_optimizer.load_state_dict(state["world"]["optimizer"])
