"""Cross-entropy method (Rubinstein 1999; as a planner in PETS, 1805.12114), begun at a policy's draws.

    E = the ⌈ρ N⌉ best of a_1 … a_N,   μ = mean(E),   σ = std(E),   a_n ~ N(μ, σ²) within the robot's range

The best plan of all iterations is returned. It stays among the candidates, so that its score never falls.

Shapes legend: ``N`` candidates, ``T`` control steps, ``A`` numbers of an action.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from worldrl.rollout.planning.best_of_n import Plan, Score, best_of_n
from worldrl.rollout.planning.config import CemConfig


def cem(
    candidates: Tensor,
    scores: Tensor,
    score: Score,
    config: CemConfig,
    *,
    bounds: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Plan:
    """Refine candidates ``[N, T, A]`` with ``scores [N]``; ``bounds`` are the robot's lowest and highest numbers ``[A]``."""
    count = math.ceil(config.elite_share * len(candidates))
    for _ in range(config.iterations):
        elites = candidates[scores.argsort(descending=True, stable=True)[:count]]
        drawn = torch.randn(candidates.shape, generator=generator)
        fresh = (elites.mean(dim=0) + elites.std(dim=0, correction=0) * drawn).clamp(*bounds)
        candidates = torch.cat([best_of_n(candidates, scores).action[None], fresh[1:]])
        scores = score(candidates)
    return best_of_n(candidates, scores)
