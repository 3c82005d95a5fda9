"""The worlds that ``worldrl train-offline`` imagines in: opened by name, trained first where they learn.

``none`` trains on recorded rows alone; ``ensemble`` is the learned state ensemble; ``true`` the simulator itself, for
diagnostics; ``diffusion`` whole trajectories guided by the agent, without a world to step through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from worldrl import registry
from worldrl.algorithms.offline.branches import BranchConfig, Branches
from worldrl.algorithms.offline.imagining import Imagining
from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Imagination, Logs
from worldrl.core.log import MetricLog
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import Trajectories
from worldrl.world_models.offline.config import Uncertainty
from worldrl.world_models.offline.ensemble_training import fit_ensemble
from worldrl.world_models.offline.ensemble_world import EnsembleWorld, EnsembleWorldConfig
from worldrl.world_models.offline.guided_dreams import DreamConfig, GuidedDreams
from worldrl.world_models.offline.terminations import Termination, termination_rule
from worldrl.world_models.offline.trajectory_diffusion import (
    TrajectoryDiffusionConfig,
    TrajectoryTraining,
    fit_trajectories,
)
from worldrl.world_models.offline.trajectory_sampling import GuidanceConfig, SamplerConfig
from worldrl.world_models.offline.true_dynamics import TrueDynamics

WORLDS = ("none", "ensemble", "true", "diffusion")
AUTO = "auto"
GUIDED = Imagining(horizon=32, real_ratio=1 / 16, rollouts=8192, refresh_every=10_000, generations=1)
"""Policy-guided diffusion's own numbers: 8192 trajectories of 32 steps every 10,000 updates, 240 + 16 rows a batch."""


@dataclass
class DiffusionSettings:
    """Trajectory diffusion, with ``world=diffusion``."""

    model: TrajectoryDiffusionConfig = field(default_factory=TrajectoryDiffusionConfig)
    training: TrajectoryTraining = field(default_factory=TrajectoryTraining)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)


@dataclass(frozen=True)
class Imagined:
    """What an algorithm imagines with.

    Attributes:
        imagination: makes generations of rows; None where nothing is imagined.
        world: a :class:`~worldrl.core.interfaces.StateWorld`, where there is one to step through.
        report: JSON-ready, of its training.
    """

    imagination: Imagination | None
    world: Any
    report: dict[str, Any]


def open_imagined(
    settings: Any, data: Trajectories, rows: Transitions, *, folder: Path, log: MetricLog, device: torch.device
) -> Imagined:
    """Open the world that the settings ask for.

    Args:
        settings: of the command.
        data: the dataset.
        rows: the same as transitions, on ``device``.
        folder: of the world's checkpoints.
        log: of its training.
        device: where it learns and runs.

    Raises:
        SettingError: the dataset lacks what the world needs.
    """
    if settings.world == "none":
        return Imagined(None, None, {})
    if settings.world == "diffusion":
        return _diffusion(settings, data, rows, folder, log, device)
    world, report = (
        _ensemble(settings, data, rows, folder, log, device)
        if settings.world == "ensemble"
        else (true_world(data, rows), {})
    )
    imagining: Imagining = settings.imagining
    branches = BranchConfig(starts=imagining.rollouts, horizon=imagining.horizon, penalty=imagining.penalty)
    return Imagined(Branches(world, len(rows), branches), world, report)


def true_world(data: Trajectories, rows: Transitions) -> TrueDynamics:
    """Return the dataset's own simulator, set to its recorded states.

    Raises:
        SettingError: it recorded none, or names no environment.
    """
    if data.qpos is None or data.qvel is None or data.info.env_id is None:
        raise SettingError(
            f"world=true: {data.info.source} holds no simulator states (qpos, qvel) or names no environment; "
            "make one with worldrl make-dataset, or choose world=ensemble"
        )
    return TrueDynamics(data.info.env_id, rows.obs.cpu(), data.qpos, data.qvel, data.info.env_kwargs)


def rule_of(name: str, env_id: str | None, env_kwargs: Mapping[str, Any]) -> Termination:
    """Return the termination rule called ``name``; ``auto`` takes the environment's own.

    Raises:
        SettingError: unknown, or ``auto`` for an environment without a known rule.
    """
    if name != AUTO:
        return registry.TERMINATIONS.get(name)
    if env_id is None:
        raise SettingError(
            "termination=auto needs the data's environment; give env=ID, or termination=never or another"
        )
    return termination_rule(env_id, env_kwargs)


def _ensemble(
    settings: Any, data: Trajectories, rows: Transitions, folder: Path, log: MetricLog, device: torch.device
) -> tuple[EnsembleWorld, dict[str, Any]]:
    rule = rule_of(settings.termination, data.info.env_id, data.info.env_kwargs)
    ensemble, report = fit_ensemble(
        "world",
        rows,
        settings.ensemble,
        settings.ensemble_training,
        seed=settings.seed,
        folder=folder,
        log=log,
        device=device,
    )
    measured = Uncertainty(settings.uncertainty) if settings.imagining.penalty > 0 else Uncertainty.none
    return EnsembleWorld(ensemble, rows.obs, rule, EnsembleWorldConfig(uncertainty=measured)), report.to_json()


def _diffusion(
    settings: Any, data: Trajectories, rows: Transitions, folder: Path, log: MetricLog, device: torch.device
) -> Imagined:
    plan: DiffusionSettings = settings.diffusion
    if settings.imagining.horizon != plan.model.length:
        raise SettingError(
            f"imagining.horizon must be diffusion.model.length={plan.model.length}, the steps of a trajectory, received "
            f"{settings.imagining.horizon}"
        )
    model, report = fit_trajectories(
        "world",
        rows,
        torch.from_numpy(data.episode),
        plan.model,
        plan.training,
        seed=settings.seed,
        folder=folder,
        log=log,
        device=device,
    )
    dreams = GuidedDreams(model, DreamConfig(settings.imagining.rollouts), plan.sampler, plan.guidance)
    numbers = {"windows": report.windows, "validation_loss": report.validation_loss}
    return Imagined(FirstUnguided(dreams), None, numbers)


class FirstUnguided:
    """Guided dreams of which the first generation follows nobody: an agent that has learned nothing is no guide."""

    def __init__(self, dreams: GuidedDreams) -> None:
        self.dreams = dreams

    def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Draw one generation."""
        return self.dreams.generate(agent if agent.updates else None, generator=generator)
