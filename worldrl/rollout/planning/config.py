"""Settings of planning at test time: how plans are drawn, imagined, scored and chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from worldrl.core.errors import SettingError, nearest
from worldrl.policies.exploration import DISPLACED, Exploration, fill_null

NONE = "none"
PLANNERS = ("best_of_n", "cem", "mppi")
PLANNER = (
    "none, best_of_n, cem or mppi: candidates of the policy are imagined before each chunk, and the best is executed"
)
"""What ``--help`` says of a command's planner."""
NEWEST = "newest"
"""The world model that ``train-vla`` plans in: its own."""


@dataclass(frozen=True)
class CemConfig:
    """Settings of the cross-entropy method."""

    iterations: int = 2  # how often the distribution is fitted; each time all candidates are imagined again.
    elite_share: float = 0.25  # share of the candidates, the best ones, that it is fitted to.


@dataclass(frozen=True)
class MppiConfig:
    """Settings of model predictive path integral control."""

    iterations: int = 2  # how often the mean is moved; each time all candidates are imagined.
    softmax_temperature: float = 0.1  # score difference that a weight falls by a factor e for.


@dataclass(frozen=True)
class PlanningConfig:
    """How a planner draws and scores candidates: rollouts of a policy, imagined in a world model."""

    world_model: str = "bundled"  # bundled, or a world-model folder; of train-vla newest, its own.
    candidates: int = 24  # imagined rollouts of a decision, the policy's own among them; at least 2.
    horizon: int = 8  # chunks imagined ahead; never beyond the episode's time limit.
    # imagined success probability at which a plan is executed without a search; below it even after a search the policy
    # acts alone.
    threshold: float = 0.4
    # temperature of the policy's draws in imagination; null: 0.25 for a policy with a waypoint, 2 for others.
    temperature: float | None = None
    # share of their randomness that stays the same over a rollout; null: 0 for a policy with a waypoint, 0.3 for others.
    noise_correlation: float | None = None
    # largest standard deviation of a rollout's displacement of its waypoints, in standard deviations of the commands;
    # null: 0.5 for a policy with a waypoint, 0 for others.
    waypoint_noise: float | None = None
    dtype: str = "auto"  # number type of imagination: float32, bfloat16, or auto, bfloat16 where the device has it.
    cem: CemConfig = field(default_factory=CemConfig, metadata={"only_with": ".planner=cem"})
    mppi: MppiConfig = field(default_factory=MppiConfig, metadata={"only_with": ".planner=mppi"})

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, least in (("candidates", 2), ("horizon", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"planning.{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.threshold <= 1:
            raise SettingError(f"planning.threshold: must be in [0, 1], got {self.threshold}")

    def exploration(self, *, waypoint: bool) -> Exploration:
        """Say how candidates of a policy with or without a waypoint are drawn; SettingError: it has none to displace."""
        if self.waypoint_noise and not waypoint:
            raise SettingError(
                f"planning.waypoint_noise={self.waypoint_noise}: needs a policy with a waypoint; leave it out"
            )
        return fill_null(self, DISPLACED if waypoint else Exploration(2.0, 0.3))


@dataclass(frozen=True)
class Planner:
    """A planner by its name, and its settings."""

    name: str
    config: PlanningConfig

    def __post_init__(self) -> None:
        """Check the name."""
        if self.name not in PLANNERS:
            raise SettingError(f"planner: unknown value {self.name!r}{nearest(self.name, (NONE, *PLANNERS))}")
