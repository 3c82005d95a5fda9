"""EDAC (An et al. 2021): SAC-N with a loss on the angles between the critics' action gradients.

    g_i = ∇_a Q_i(s, a) / ‖∇_a Q_i(s, a)‖
    L_div = 1/(N − 1) · mean_b Σ_{i≠j} g_iᵀ g_j = 1/(N − 1) · mean_b (‖Σ_i g_i‖² − Σ_i ‖g_i‖²)
    critic:  Σ_i mean_b (Q_i(s, a) − y)² + η L_div

The second form of L_div needs no N × N Gram matrix.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import require_value
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import require_rules
from worldrl.methods.offline.critic_gradient import diverse_td_gradients, diversity_loss
from worldrl.methods.offline.sac import Sac
from worldrl.methods.offline.sac_n import SacNConfig
from worldrl.methods.offline.targets import td_loss


@dataclass(frozen=True)
class EdacConfig(SacNConfig):
    """Settings of :class:`Edac`; defaults are the paper's for most D4RL sets (Hopper: 50 critics)."""

    diversity: float = 1.0  # weight η of L_div; 0 leaves SAC-N.

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rules(self, "agent", {"zero or more": "diversity"})
        enough = self.critics >= 2 or self.diversity == 0
        require_value(enough, "agent.critics", "at least 2 where agent.diversity is not 0", self.critics)


class Edac(Sac):
    """SAC-N with gradient diversity; updates use the gradient of :meth:`critic_loss` in closed form."""

    name: ClassVar[str] = "edac"
    config_class: ClassVar[type[Any]] = EdacConfig

    def critic_loss(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> tuple[Tensor, Logs]:
        """Return TD loss plus η L_div, with autograd's second derivatives."""
        action = batch.action.expand(self.config.critics, -1, -1).clone().requires_grad_(True)  # one leaf per member
        q = self.critic(batch.obs, action)
        loss = td_loss(q, target)
        logs = {"critic/td": loss.detach(), "critic/q": q.detach().mean()}
        if self.config.diversity == 0:
            return loss, logs
        (gradient,) = torch.autograd.grad(q.sum(), action, create_graph=True)
        diversity = diversity_loss(gradient)
        return loss + self.config.diversity * diversity, logs | {"critic/diversity": diversity.detach()}

    def update_critic(self, batch: Transitions, target: Tensor, draws: torch.Generator) -> Logs:
        """Take a step of all critics towards ``target [B]``."""
        if self.config.layer_norm:  # the closed form is of plain ReLU networks
            return super().update_critic(batch, target, draws)
        gradients, logs = self.critic_gradients(batch, target)
        for parameter, gradient in zip(self.critic.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizers["critic"].step()
        return logs

    def critic_gradients(self, batch: Transitions, target: Tensor) -> tuple[list[Tensor], Logs]:
        """Return the loss's gradient in the order of the critics' parameters, and what to log."""
        found, logs = diverse_td_gradients(self.critic, batch.obs, batch.action, target, self.config.diversity)
        return [found[parameter] for parameter in self.critic.parameters()], logs
