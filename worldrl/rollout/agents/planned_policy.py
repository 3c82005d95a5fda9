"""The spec of a policy with a planner; ``acting_planner`` acts for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from worldrl.core.errors import SettingError
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.planning.config import Planner, PlanningConfig
from worldrl.rollout.real.rows import Actor


@dataclass(frozen=True)
class PlannedPolicyActor(PolicyActor):
    """A policy and a planner; ``planner.config.world_model`` is a folder."""

    kind: ClassVar[str] = "planned-policy"
    planner: Planner = field(default_factory=lambda: Planner("best_of_n", PlanningConfig()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latency:
            raise SettingError(f"latency: a planner decides while the robot waits, got {self.latency}; give latency=0")

    def build(self) -> Actor:
        """Load policy and world model, inside the worker."""
        from worldrl.rollout.agents.acting_planner import ActingPlanner

        return ActingPlanner(self, self.planner)


def policy_with(
    planner: Planner | None, *, monitor: str | None = None, intervene: bool = False, **fields: Any
) -> PolicyActor:
    """Make the actor of a policy, alone without planner and monitor; ``fields`` are those of :class:`PolicyActor`."""
    if monitor is not None:
        from worldrl.rollout.agents.monitored_policy import MonitoredPolicyActor

        return MonitoredPolicyActor(**fields, monitor=monitor, intervene=intervene)
    return PolicyActor(**fields) if planner is None else PlannedPolicyActor(**fields, planner=planner)
