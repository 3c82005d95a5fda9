"""What is asked of a model-based agent and its imagination once training is over: free of charge where nothing fits.

``reach``: do RAVL's critics disagree at the edge of reach (:mod:`~worldrl.methods.offline.reach`)? ``imagined_rollouts``: how far are
imagined steps from the simulator's, and how likely are their actions under the agent? The simulator is stepped for that,
so the steps count as knowledge of the real environment, and stand beside the score.
"""

from __future__ import annotations

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

ASKED = 2000
"""Rollouts whose final states RAVL's critics are asked about."""
JUDGED = 64
"""Rollouts, or trajectories, whose steps the simulator judges."""


def diagnose(settings: Any, agent: Any, data: Trajectories, imagination: Any, device: torch.device) -> dict[str, Any]:
    """Return ``reach`` and ``imagined_rollouts``, each where it can be told."""
    found: dict[str, Any] = {}
    if isinstance(imagination, PlannedBranches):
        imagination = imagination.branches  # the policy's own rollouts are judged
    if isinstance(agent, Ravl) and isinstance(imagination, Branches):
        draws = on_device(stream(settings.seed, "diagnosis", "reach"), device)
        found["reach"] = reach_report(agent, imagination, rollouts=ASKED, generator=draws)
    few = _few(imagination)
    judged = few is not None and settings.world in ("ensemble", "diffusion") and isinstance(agent, ActionDensity)
    simulator = _simulator(data) if judged else None
    if few is not None and simulator is not None:
        draws = on_device(stream(settings.seed, "diagnosis", "dreams"), device)
        rows, _ = few.generate(agent, generator=draws)
        with torch.no_grad():
            found["imagined_rollouts"] = trajectory_quality(simulator, agent, rows)
    return found


def _simulator(data: Trajectories) -> Simulator | None:
    """Return the data's simulator; None where no states were recorded or it cannot be made here: the agent is trained by now."""
    if data.qpos is None or data.info.env_id is None:
        return None
    try:
        return Simulator(registered_id(data.info.env_id), data.info.env_kwargs)
    except (SettingError, MissingExtraError):
        return None


def _few(imagination: Any) -> Branches | GuidedRollouts | None:
    """Return the same imagination for ``JUDGED`` rollouts or trajectories."""
    if isinstance(imagination, Branches):
        return Branches(imagination.world, imagination.rows, replace(imagination.config, starts=JUDGED, penalty=0.0))
    if isinstance(imagination, FirstUnguided):
        policy_rollouts = imagination.policy_rollouts
        return GuidedRollouts(
            policy_rollouts.model,
            replace(policy_rollouts.config, trajectories=JUDGED),
            policy_rollouts.sampler,
            policy_rollouts.guidance,
        )
    return None
