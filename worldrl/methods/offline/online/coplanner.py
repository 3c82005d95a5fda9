"""COPlanner (Wang et al., ICLR 2024): actions chosen by a few imagined steps and the world's uncertainty.

UP-MPC draws K candidate actions from the policy at each state, follows each with the policy for H steps in the world,
and takes the candidate of the largest

    Σ_{i<H} γ_r^i r_i + w Σ_{i<H} γ_u^i u_i

with w = −α_c (conservative) in rollouts for training, and w = +α_o (optimistic) in exploration of the real environment.
u is the world's uncertainty; the published one is the deviation of the members' samples (``sample_std``).

Shapes legend: ``B`` states, ``K`` candidates, ``S`` observation, ``A`` action.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import OfflineAgent, StateWorld
from worldrl.methods.offline.agent import require_rules


@dataclass(frozen=True)
class UpMpcConfig:
    """Settings of :func:`up_mpc`; defaults are those on MBPO."""

    candidates: int = 5  # K.
    horizon: int = 5  # H.
    reward_discount: float = 0.97  # γ_r.
    uncertainty_discount: float = 0.97  # γ_u.
    conservative: float = 2.0  # α_c, of rollouts.
    optimistic: float = 1.0  # α_o, of exploration.

    def __post_init__(self) -> None:
        rules = {
            "at least 1": "candidates horizon",
            "in [0, 1]": "reward_discount uncertainty_discount",
            "zero or more": "conservative optimistic",
        }
        require_rules(self, "planner", rules)


@torch.no_grad()
def plan_scores(
    world: StateWorld,
    state: Any,
    agent: OfflineAgent,
    action: Tensor,
    config: UpMpcConfig,
    weight: float,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Score first actions ``[B, A]`` at world states by following the policy: ``[B]``; steps after a termination count nothing."""
    score = torch.zeros(len(action), device=action.device)
    alive = torch.ones_like(score)
    for step in range(config.horizon):
        state, outcome = world.step(state, action, generator=generator)
        gain = config.reward_discount**step * outcome.reward
        score += alive * (gain + weight * config.uncertainty_discount**step * outcome.uncertainty)
        alive = alive * ~outcome.terminated
        if step + 1 < config.horizon:
            action = agent.act(outcome.obs, generator=generator)
    return score


@torch.no_grad()
def up_mpc(
    world: StateWorld,
    state: Any,
    obs: Tensor,
    agent: OfflineAgent,
    config: UpMpcConfig,
    weight: float,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Choose actions ``[B, A]`` by uncertainty-aware policy-guided planning; ``weight`` is −α_c or +α_o."""
    rows, count = len(obs), config.candidates
    index = torch.arange(rows, device=obs.device).repeat(count)  # candidate after candidate
    candidates = agent.act(obs[index], generator=generator)
    scores = plan_scores(
        world, world.select(state, index), agent, candidates, config, weight, generator=generator
    ).reshape(count, rows)
    best = scores.argmax(dim=0)
    return candidates.reshape(count, rows, -1)[best, torch.arange(rows, device=obs.device)]


class Planner:
    """Plans from observations, optimistic if it ``explores``, else conservative; its world must have ``start_at``."""

    def __init__(self, world: Any, agent: OfflineAgent, config: UpMpcConfig, *, explores: bool) -> None:
        self.world, self.agent, self.config = world, agent, config
        self.weight = config.optimistic if explores else -config.conservative

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose actions ``[B, A]``; ``generator=None`` takes the policy's most likely action, without a plan."""
        if generator is None:
            return self.agent.act(obs, generator=None)
        state, obs = self.world.start_at(obs, generator=generator)
        return up_mpc(self.world, state, obs, self.agent, self.config, self.weight, generator=generator)
