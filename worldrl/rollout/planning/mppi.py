"""Model predictive path integral control (Williams et al., 1509.01149), begun at a policy's draws.

    w_n = softmax(s(a_n) / λ),   μ = Σ_n w_n a_n,   a_n ~ N(μ, σ²) within the robot's range, σ that of the first draws

The last mean is returned with a score of its own.

Shapes legend: ``N`` candidates, ``T`` control steps, ``A`` numbers of an action.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldrl.rollout.planning.best_of_n import Plan, Score
from worldrl.rollout.planning.config import MppiConfig


def mppi(
    candidates: Tensor,
    scores: Tensor,
    score: Score,
    config: MppiConfig,
    *,
    bounds: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Plan:
    """Move the mean of candidates ``[N, T, A]`` with ``scores [N]``; ``bounds`` are the robot's lowest and highest numbers."""
    spread = candidates.std(dim=0, correction=0)
    mean = _mean(candidates, scores, config)
    for _ in range(config.iterations - 1):
        drawn = torch.randn(candidates.shape, generator=generator)
        candidates = torch.cat([mean[None], (mean + spread * drawn).clamp(*bounds)[1:]])
        mean = _mean(candidates, score(candidates), config)
    return Plan(mean, float(score(mean[None])))


def _mean(candidates: Tensor, scores: Tensor, config: MppiConfig) -> Tensor:
    weights = (scores / config.softmax_temperature).softmax(dim=0)
    return (weights[:, None, None] * candidates).sum(dim=0)
