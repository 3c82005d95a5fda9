"""Detection of edge-of-reach states by the critics (Sims et al. 2024).

A state that rollouts reach only at their last step occurs in targets alone and is never corrected. In continuous spaces
no two states are equal, so the edge is the tenth of final states that is farthest from all states acted from.
"""

import torch
from torch import Tensor

from worldrl.core.statistics.intervals import auroc
from worldrl.methods.offline.branches import Branches, branch
from worldrl.methods.offline.sac import Sac, effective_penalty

FAR = 0.1  # the share of final states, the farthest ones, that counts as the edge of reach


def nearest(final: Tensor, earlier: Tensor) -> Tensor:
    """Distance ``[B]`` of final states to the nearest state that a rollout acted from, in deviations of the latter."""
    std = earlier.std(0) + 1e-3
    return torch.cat([torch.cdist(part / std, earlier / std).min(dim=1).values for part in final.split(1024)])


@torch.no_grad()
def reach_report(agent: Sac, imagination: Branches, *, rollouts: int, generator: torch.Generator) -> dict[str, float]:
    """Measure the critics' disagreement at the final states of new rollouts of the agent's sampled actions.

    Returns ``penalty_auroc`` of mean_i Q_i - min_i Q_i between edge and other final states, its means ``penalty_edge``
    and ``penalty_within``, ``distance_edge`` (smallest, in deviations) and the world's ``largest_uncertainty``.
    """
    index = torch.randint(imagination.rows, (rollouts,), generator=generator, device=generator.device)
    parts, outcomes = branch(imagination.world, agent, index, imagination.config, generator=generator)
    alive = ~parts[-1].terminated
    final = parts[-1].next_obs[alive] if bool(alive.any()) else parts[-1].next_obs
    distance = nearest(final, torch.cat([part.obs for part in parts]))
    penalty = effective_penalty(agent.critic(final, agent.act(final, generator=None)))
    bound = distance.quantile(1 - FAR)
    far = distance >= bound
    two = bool(far.any() and (~far).any())
    return {
        "penalty_auroc": auroc(penalty[far].cpu().numpy(), penalty[~far].cpu().numpy()),
        "penalty_edge": float(penalty[far].mean()),
        "penalty_within": float(penalty[~far].mean()) if two else float(penalty.mean()),
        "distance_edge": float(bound),
        "largest_uncertainty": float(torch.cat([outcome.uncertainty for outcome in outcomes]).max()),
    }
