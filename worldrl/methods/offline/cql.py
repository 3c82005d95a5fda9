"""CQL (Kumar et al. 2020): SAC whose critics are lowered at the policy's actions and raised at the recorded ones.

    critic:  Σ_i mean_b (Q_i(s, a) − y)² + w Σ_i [ T mean_b log Σ_{a' ∈ K} exp((Q_i(s, a') − log q(a'))/T) − mean_b Q_i(s, a) ]

K holds n uniform actions (log q = −A log 2), n of π(·|s) and n of π(·|s') (log q = log π), all valued at s: the
importance-weighted estimate of log ∫ exp Q up to a constant (Appendix F). In OfflineRL-Kit the reshape of these values
has no effect, so its log-sum-exp covers 3 values; here it covers all 3 n.

Shapes legend: ``B`` rows, ``A`` action, ``N`` critics, ``n`` actions of each kind.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import require_rules
from worldrl.methods.offline.networks import StackedCritic, squashed_sample
from worldrl.methods.offline.sac import Sac, SacConfig


@dataclass(frozen=True)
class CqlConfig(SacConfig):
    """Settings of :class:`Cql`; defaults are OfflineRL-Kit's for D4RL locomotion."""

    hidden: tuple[int, ...] = (256, 256, 256)
    entropy_backup: bool = False
    largest_temperature: float | None = None
    actor_cosine: bool = False
    conservatism: float = 5.0  # weight w.
    softmax_temperature: float = 1.0  # T.
    actions: int = 10  # n, actions of each kind.

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = {"zero or more": "conservatism", "positive": "softmax_temperature", "at least 1": "actions"}
        require_rules(self, "agent", rules)


def conservative_gap(q_asked: Tensor, logq_asked: Tensor, q_data: Tensor, temperature: float) -> Tensor:
    """Σ_i [T mean log Σ_K exp((Q − log q)/T) − mean Q_data]: of ``[N, K, B]``, ``[K, B]`` and ``[N, any]`` a scalar."""
    soft = temperature * torch.logsumexp((q_asked - logq_asked) / temperature, dim=1)  # [N, B]
    return soft.mean(dim=1).sum() - q_data.mean(dim=1).sum()


class Cql(Sac):
    """SAC with the conservative term, of a fixed weight."""

    name: ClassVar[str] = "cql"
    config_class: ClassVar[type[Any]] = CqlConfig

    def critic_loss(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Return TD loss plus w times the conservative gap."""
        loss, logs = super().critic_loss(batch, target, draws)
        gap = self.gap(batch, batch, draws)
        return loss + self.config.conservatism * gap, logs | {"critic/gap": gap.detach()}

    def gap(self, asked: Transitions, data: Transitions, draws: torch.Generator) -> Tensor:
        """Conservative gap between the policy's actions at the states ``asked`` and those of ``data``."""
        with torch.no_grad():
            action, logq = self.asked_actions(asked, draws)
        q_asked = stacked_values(self.critic, asked.obs, action)
        return conservative_gap(q_asked, logq, self.critic(data.obs, data.action), self.config.softmax_temperature)

    def asked_actions(self, batch: Transitions, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the 3 n actions ``[3 n, B, A]`` and their log-densities ``[3 n, B]``."""
        count, rows, size = self.config.actions, len(batch), self.facts.action_size
        uniform = 2 * torch.rand(count, rows, size, generator=draws, device=batch.obs.device) - 1
        actions, logqs = [uniform], [uniform.new_full((count, rows), -size * math.log(2))]
        for obs in (batch.obs, batch.next_obs):
            noise = torch.randn(count, rows, size, generator=draws, device=obs.device)
            action, logp = squashed_sample(self.actor(obs), noise)
            actions.append(action)
            logqs.append(logp)
        return torch.cat(actions), torch.cat(logqs)


def stacked_values(critic: StackedCritic, obs: Tensor, action: Tensor) -> Tensor:
    """Value ``K`` actions ``[K, B, A]`` at each state ``[B, S]``: ``[N, K, B]``."""
    count, rows = action.shape[:2]
    return critic(obs.repeat(count, 1), action.flatten(0, 1)).reshape(-1, count, rows)
