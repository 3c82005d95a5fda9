"""Common settings of the edge-of-reach reproductions, and the oracle's patch. Shapes: ``B`` rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.reproductions.edge_of_reach.plane import Plane

FLOOR = 1e-2  # Values below count as this in logarithms


def common_settings(settings: Any) -> dict[str, Any]:
    """Return what all agents share. The targets have no entropy, so a value is a return and comparable with one."""
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
    """SAC with the oracle's target at the edge of reach, and nowhere else; ``patched`` is the mean share of such targets."""

    def __init__(self, config: SacConfig, facts: Facts, plane: Plane) -> None:
        super().__init__(config, facts)
        self.plane, self.patched = plane, 0.0

    def state_dict(self) -> dict[str, Any]:
        """SAC's state, and the share of patched targets."""
        return super().state_dict() | {"patched": self.patched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        super().load_state_dict(state)
        self.patched = float(state["patched"])

    @torch.no_grad()
    def target(self, batch: Transitions, draws: torch.Generator) -> Tensor:
        """Return y ``[B]``, with Q*(s', a') for the bootstrapped value where s' is at the edge."""
        action, _ = self.sample(batch.next_obs, draws)
        arrived = batch.next_obs[:, :2]
        true = batch.reward + self.config.discount * self.plane.q(arrived, action)
        edge = self.plane.at_edge(arrived, self.plane.horizon)
        self.patched += (float(edge.float().mean()) - self.patched) / (self.updates + 1)
        return torch.where(edge, true, super().target(batch, draws))


def padded(evaluations: Sequence[Mapping[str, float]], count: int) -> dict[str, list[float]]:
    """Return evaluations as curves of ``count`` points; a training that ended early repeats its last value."""
    whole = [*evaluations, *[evaluations[-1]] * (count - len(evaluations))]
    return {key: [found[key] for found in whole] for key in evaluations[0] if key != "step"}
