"""RO2O (Wen et al. 2024): a critic ensemble that is smooth around the data, for offline and online learning.

SAC-N (:mod:`worldrl.methods.offline.sac_n`) plus three terms on states s + ν with ν ~ U(−ε, ε)^S, n draws of ν:

    critic:  w_Q mean_b max_ν mean_i L_τ(Q_i(s + ν, a) − Q_i(s, a)),   L_τ(u) = (1 − τ) u₊² + τ u₋²
    critic:  β_o mean_{i,b,ν} (Q_i(s + ν, a') − sg[Q_i(s + ν, a') − λ Std_i Q_i(s + ν, a')])²,   a' ~ π(·|s + ν)
    actor:   β_P mean_b max_ν [KL(π(s) ‖ π(s + ν)) + KL(π(s + ν) ‖ π(s))]

λ falls by ``spread_decay`` per update, down to ``least_spread``. KLs are those of the Gaussians before tanh, which are
equal. As in the published code, all rows of a batch share their n draws of ν.

Shapes legend: ``B`` rows, ``S`` observation, ``A`` action, ``N`` critics, ``n`` draws of ν.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import require_value
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import require_rules
from worldrl.methods.offline.networks import Gaussian
from worldrl.methods.offline.sac import Sac
from worldrl.methods.offline.sac_n import SacNConfig


@dataclass(frozen=True)
class Ro2oConfig(SacNConfig):
    """Settings of :class:`Ro2o`; defaults are the published ones for locomotion. Observations are best standardised."""

    noise_q: float = 0.01  # ε of the critics' smoothness.
    noise_policy: float = 0.01  # ε of the policy's smoothness.
    noise_spread: float = 0.01  # ε of the states whose values are lowered by their spread.
    draws: int = 20  # n.
    weight_q: float = 1e-4  # w_Q.
    asymmetry: float = 0.2  # τ of L_τ.
    weight_policy: float = 1.0  # β_P.
    weight_spread: float = 0.1  # β_o.
    spread: float = 1.0  # λ at the beginning.
    least_spread: float = 0.1  # λ at the end.
    spread_decay: float = 5e-7  # by how much λ falls per update.

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.critics >= 2, "agent.critics", "at least 2 with algorithm=ro2o", self.critics)
        weights = "noise_q noise_policy noise_spread weight_q weight_policy weight_spread"
        require_rules(self, "agent", {"at least 1": "draws", "in [0, 1]": "asymmetry", "zero or more": weights})


def asymmetric_square(difference: Tensor, asymmetry: float) -> Tensor:
    """L_τ(u) = (1 − τ) u₊² + τ u₋², element by element: values that rise under noise weigh more for τ < ½."""
    return torch.where(difference > 0, 1 - asymmetry, asymmetry) * difference.square()


def worst_smoothness(q_noised: Tensor, q: Tensor, asymmetry: float) -> Tensor:
    """mean_b max_ν mean_i L_τ(Q_i(s + ν, a) − Q_i(s, a)): ``[N, n, B]`` and ``[N, B]`` to a scalar."""
    return asymmetric_square(q_noised - q[:, None], asymmetry).mean(dim=0).amax(dim=0).mean()


def gaussian_kl(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p ‖ q) of independent normals, summed over the last axis."""
    ratio = 2 * (p.log_std - q.log_std)
    shift = ((p.mean - q.mean) * (-q.log_std).exp()).square()
    return 0.5 * (ratio.exp() + shift - 1 - ratio).sum(dim=-1)


def worst_symmetric_kl(clean: Gaussian, noised: Gaussian) -> Tensor:
    """mean_b max_ν of both KLs added: ``[B, A]`` and ``[n, B, A]`` to a scalar."""
    both = gaussian_kl(clean, noised) + gaussian_kl(noised, clean)  # [n, B]
    return both.amax(dim=0).mean()


def out_of_distribution_loss(q: Tensor, spread: float) -> Tensor:
    """Mean squared distance ``[N, ...]`` to the constant Q − λ Std_i Q: λ² Var_i Q in value, a push down in gradient."""
    aim = (q - spread * q.std(dim=0)).detach()
    return (q - aim).square().mean()


class Ro2o(Sac):
    """SAC-N with smooth critics and a smooth policy."""

    name: ClassVar[str] = "ro2o"
    config_class: ClassVar[type[Any]] = Ro2oConfig

    @property
    def spread(self) -> float:
        """λ after the updates taken so far."""
        config = self.config
        return max(config.spread - config.spread_decay * self.updates, config.least_spread)

    def noised(self, obs: Tensor, noise: float, draws: torch.Generator) -> Tensor:
        """Return s + ν, ``[n, B, S]``."""
        shape = (self.config.draws, 1, obs.shape[1])
        return obs + noise * (2 * torch.rand(shape, generator=draws, device=obs.device) - 1)

    def critic_loss(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Return TD loss, smoothness and uncertainty."""
        config = self.config
        loss, logs = super().critic_loss(batch, target, draws)
        q = self.critic(batch.obs, batch.action)
        q_noised = values_at(self.critic, self.noised(batch.obs, config.noise_q, draws), batch.action)
        smooth = worst_smoothness(q_noised, q, config.asymmetry)
        around = self.noised(batch.obs, config.noise_spread, draws).flatten(0, 1)
        with torch.no_grad():
            action, _ = self.sample(around, draws)
        uncertainty = out_of_distribution_loss(self.critic(around, action), self.spread)
        logs |= {"critic/smoothness": smooth.detach(), "critic/uncertainty": uncertainty.detach()}
        return loss + config.weight_q * smooth + config.weight_spread * uncertainty, logs

    def actor_penalty(self, batch: Transitions, draws: torch.Generator) -> Tensor | None:
        """Return β_P times the worst symmetric KL."""
        noised = self.noised(batch.obs, self.config.noise_policy, draws)
        return self.config.weight_policy * worst_symmetric_kl(self.actor(batch.obs), self.actor(noised))


def values_at(critic: Any, obs: Tensor, action: Tensor) -> Tensor:
    """Value one action ``[B, A]`` at each of several states ``[n, B, S]``: ``[N, n, B]``."""
    count, rows = obs.shape[:2]
    return critic(obs.flatten(0, 1), action.repeat(count, 1)).reshape(-1, count, rows)
