"""Diagnosis of a model-based agent and its imagination after training; skipped where it does not apply.

``reach``: do RAVL's critics disagree at the edge of reach? ``imagined_rollouts``: error against the simulator, and
probability of the actions under the agent. These steps are knowledge of the real environment, beside the score.
"""

from dataclasses import replace
from typing import Any

import torch

from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.core.interfaces import ActionDensity
from worldrl.core.rng import on_device, stream
from worldrl.data.offline.trajectories import Trajectories
from worldrl.methods.offline.branches import Branches
from worldrl.methods.offline.ravl import Ravl
from worldrl.methods.offline.reach import reach_report
from worldrl.recipes.offline.online_phase import PlannedBranches
from worldrl.recipes.offline.worlds import FirstUnguided
from worldrl.rollout.vector.registered_env import registered_id
from worldrl.world_models.state.guided_rollouts import GuidedRollouts, trajectory_quality
from worldrl.world_models.state.true_dynamics import Simulator

REACH_ROLLOUTS = 2000  # Rollouts whose final states RAVL's critics evaluate
COMPARED = 64  # Rollouts, or trajectories, whose steps are compared with the simulator


def diagnose(settings: Any, agent: Any, data: Trajectories, imagination: Any, device: torch.device) -> dict[str, Any]:
    """``reach`` and ``imagined_rollouts``, each where it can be measured."""
    found: dict[str, Any] = {}
    if isinstance(imagination, PlannedBranches):
        imagination = imagination.branches  # the policy's own rollouts are compared
    if isinstance(agent, Ravl) and isinstance(imagination, Branches):
        draws = on_device(stream(settings.seed, "diagnosis", "reach"), device)
        found["reach"] = reach_report(agent, imagination, rollouts=REACH_ROLLOUTS, generator=draws)
    few = _few(imagination)
    comparable = few is not None and settings.world in ("ensemble", "diffusion") and isinstance(agent, ActionDensity)
    simulator = _simulator(data) if comparable else None
    if few is not None and simulator is not None:
        draws = on_device(stream(settings.seed, "diagnosis", "dreams"), device)
        rows, _ = few.generate(agent, generator=draws)
        with torch.no_grad():
            found["imagined_rollouts"] = trajectory_quality(simulator, agent, rows)
    return found


def _simulator(data: Trajectories) -> Simulator | None:
    """The data's simulator; None where no states were recorded or it cannot be made: the agent is already trained."""
    if data.qpos is None or data.info.env_id is None:
        return None
    try:
        return Simulator(registered_id(data.info.env_id), data.info.env_kwargs)
    except (SettingError, MissingExtraError):
        return None


def _few(imagination: Any) -> Branches | GuidedRollouts | None:
    """The same imagination for ``COMPARED`` rollouts or trajectories."""
    if isinstance(imagination, Branches):
        return Branches(imagination.world, imagination.rows, replace(imagination.config, starts=COMPARED, penalty=0.0))
    if isinstance(imagination, FirstUnguided):
        guided = imagination.guided
        config = replace(guided.config, trajectories=COMPARED)
        return GuidedRollouts(guided.model, config, guided.sampler, guided.guidance)
    return None
