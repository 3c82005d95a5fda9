"""Policy-guided diffusion as a source of transitions, and two numbers that measure their quality.

Each refresh draws whole trajectories anew, guided by the present agent. More guidance raises the density of their
actions under its policy; the error of their successors should grow less than that of an autoregressive model.

Shapes legend: ``N`` rows.
"""

from dataclasses import dataclass
from typing import Any

import torch

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import ActionDensity, Logs
from worldrl.core.transitions import Transitions, concat
from worldrl.world_models.state.trajectory_diffusion import TrajectoryDiffusion
from worldrl.world_models.state.trajectory_sampling import GuidanceConfig, SamplerConfig, sample_trajectories
from worldrl.world_models.state.true_dynamics import Simulator, dynamics_error


@dataclass
class GuidedRolloutConfig:
    """One generation of trajectories."""

    trajectories: int = 8192  # per generation; 8192 is the published number, which takes the small model minutes.
    batch: int = 256  # trajectories drawn side by side.

    def __post_init__(self) -> None:
        for name in ("trajectories", "batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"diffusion.{name} must be at least 1, got {getattr(self, name)}")


class GuidedRollouts:
    """An :class:`~worldrl.core.interfaces.Imagination` that draws trajectories guided by the present agent."""

    def __init__(
        self,
        model: TrajectoryDiffusion,
        config: GuidedRolloutConfig | None = None,
        sampler: SamplerConfig | None = None,
        guidance: GuidanceConfig | None = None,
    ):
        self.model, self.config = model, config or GuidedRolloutConfig()
        self.sampler, self.guidance = sampler or SamplerConfig(), guidance or GuidanceConfig()

    def generate(self, agent: ActionDensity | None, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Draw one generation, guided by ``agent.log_prob`` (None: unguided, before its first update), and logs.

        Raises SettingError: guidance is on and the agent has no ``log_prob``.
        """
        log_prob = None if agent is None else getattr(agent, "log_prob", None)
        if self.guidance.coefficient and agent is not None and log_prob is None:
            raise SettingError(
                f"{type(agent).__name__} has no log_prob(obs, action), which guidance needs; "
                "choose another agent or set guidance.coefficient=0"
            )
        parts = []
        for first in range(0, self.config.trajectories, self.config.batch):
            count = min(self.config.batch, self.config.trajectories - first)
            x = sample_trajectories(
                self.model, count, self.sampler, generator=generator, guidance=self.guidance, log_prob=log_prob
            )
            parts.append(self.model.transitions(x))
        rows = concat(parts)
        return rows, {
            "imagination/rows": torch.tensor(float(len(rows))),
            "imagination/length": torch.tensor(len(rows) / self.config.trajectories),
            "imagination/reward": rows.reward.mean(),
            "imagination/terminated": rows.terminated.float().mean(),
        }


@torch.no_grad()
def trajectory_quality(simulator: Simulator, agent: Any, rows: Transitions) -> dict[str, float]:
    """Measure imagined rows of any world against the true simulator and the target policy ``agent``.

    Terminated rows are left out. Returns ``dynamics_error``, mean of (s' - true s')²; ``dynamics_error_median`` of
    rows' means, robust to outliers; ``log_prob``, mean log-density of the actions; ``rows``.
    """
    rows = rows.select(~rows.terminated)
    error = dynamics_error(simulator, rows.obs, rows.action, rows.next_obs)
    likelihood = agent.log_prob(rows.obs, rows.action)
    return {
        "dynamics_error": float(error.mean()),
        "dynamics_error_median": float(error.median()),
        "log_prob": float(likelihood.mean()),
        "rows": float(len(rows)),
    }
