"""What the edge-of-reach reproductions share, and the oracle's patch.

Shapes legend: ``B`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from worldrl.algorithms.offline.agent import Facts
from worldrl.algorithms.offline.sac import Sac, SacConfig
from worldrl.core.transitions import Transitions
from worldrl.jobs.reproductions.plane import Plane

FLOOR = 1e-2
"""Values below count as this in logarithms."""
sps: Any = scipy_stats


def common_settings(settings: Any) -> dict[str, Any]:
    """Return what all agents of a reproduction have in common, as keyword arguments of their configurations.

    The entropy stays out of the targets: a value is a return then, and can be held against one.
    """
    rates = {f"{part}_rate": settings.rate for part in ("actor", "critic", "temperature")}
    return {
        **rates,
        "hidden": (settings.hidden, settings.hidden),
        "discount": settings.discount,
        "polyak": settings.polyak,
        "largest_temperature": 1.0,
        "actor_cosine": False,
        "entropy_backup": False,
    }


class PatchedSac(Sac):
    """SAC whose target is the oracle's where nothing was ever begun.

    What rollouts really pass through decides, not what some policy could reach: a policy that is slow or that turns
    leaves far more states without a successor of their own than the geometric edge holds.

    Args:
        config: of SAC.
        facts: of the data.
        plane: the environment.

    Attributes:
        seen: bool ``[CELLS, CELLS]``, where rows begin that it learns from; whoever adds rows keeps it up to date.
    """

    def __init__(self, config: SacConfig, facts: Facts, plane: Plane) -> None:
        super().__init__(config, facts)
        self.plane, self.seen = plane, plane.visited(torch.empty(0, 2))

    @torch.no_grad()
    def target(self, batch: Transitions, draws: torch.Generator) -> Tensor:
        """Return y ``[B]``, with Q*(s', a') in the place of the bootstrapped value where no row begins near s'."""
        action, _ = self.sample(batch.next_obs, draws)
        true = batch.reward + self.config.discount * self.plane.q(batch.next_obs, action)
        return torch.where(self.seen[self.plane.cell(batch.next_obs)], super().target(batch, draws), true)


def nearest(final: Tensor, earlier: Tensor) -> Tensor:
    """Distance ``[B]`` of final states to the nearest state that a rollout acted from, in deviations of the latter."""
    std = earlier.std(0) + 1e-3
    return torch.cat([torch.cdist(part / std, earlier / std).min(dim=1).values for part in final.split(1024)])


def auroc(above: Any, below: Any) -> float:
    """Probability that a number of the first kind exceeds one of the second, ties counting half (Mann-Whitney)."""
    ranks = sps.rankdata(np.concatenate([above, below]))
    return float((ranks[: len(above)].sum() - len(above) * (len(above) + 1) / 2) / (len(above) * len(below)))


def padded(evaluations: Sequence[Mapping[str, float]], count: int) -> dict[str, list[float]]:
    """Lay evaluations out as curves of ``count`` points; those of a training that ended early keep their last value."""
    whole = [*evaluations, *[evaluations[-1]] * (count - len(evaluations))]
    return {key: [found[key] for found in whole] for key in evaluations[0] if key != "step"}
