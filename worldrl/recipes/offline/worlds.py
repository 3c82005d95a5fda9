"""Worlds of ``worldrl train-offline``: opened by name, and trained first where they learn.

``none`` trains on recorded rows alone; ``ensemble`` is the learned state ensemble; ``true`` the simulator, for
diagnostics; ``diffusion`` whole trajectories guided by the agent; ``latent`` the latents of a video world model, a
chunk a step.
"""

import hashlib
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl import registry
from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Imagination, Logs
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.transitions import Transitions
from worldrl.data.lerobot.dataset import open_recorded
from worldrl.data.offline.known_tasks import task_of
from worldrl.data.offline.loading import open_trajectories
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.latent.latent_keypoints import fit_keypoints
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.recipes.folder_lock import exclusive_folder
from worldrl.recipes.offline.data import print_remarks, reading
from worldrl.recipes.offline.latent_actor import embedded_tasks, limit_in_chunks
from worldrl.recipes.offline.online_phase import rollouts_in
from worldrl.recipes.training_data import require_image_size
from worldrl.recipes.world_model.start import weights_folder
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.latent_world import LatentWorld, RecordedLatents, recorded_latents
from worldrl.rollout.vector.registered_env import registered_id
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.loading import open_world_model, require_one_view
from worldrl.world_models.state.config import MemberChoice, Uncertainty
from worldrl.world_models.state.ensemble_training import fit_ensemble
from worldrl.world_models.state.ensemble_world import EnsembleWorld, EnsembleWorldConfig
from worldrl.world_models.state.guided_rollouts import GuidedRolloutConfig, GuidedRollouts
from worldrl.world_models.state.termination_head import fit_termination
from worldrl.world_models.state.terminations import Termination, check_rule, termination_rule
from worldrl.world_models.state.trajectory_diffusion import (
    TrajectoryDiffusionConfig,
    TrajectoryTraining,
    fit_trajectories,
    published_trajectory_diffusion,
    published_trajectory_training,
)
from worldrl.world_models.state.trajectory_sampling import GuidanceConfig, SamplerConfig, published_sampler
from worldrl.world_models.state.true_dynamics import TrueDynamics
from worldrl.world_models.video.model import VideoWorldModel

WORLDS = ("none", "ensemble", "true", "diffusion", "latent")
KEYPOINTS, COMPONENTS = "keypoints", "components"
"""Settings of ``world=latent``, and folders of the encoder of observations and of the basis of actions."""
LATENT = (KEYPOINTS, COMPONENTS, "stride")  # Settings of that world alone
NEVER = "never"
AUTO, LEARNED = "auto", "learned"
"""Termination rules outside the registry: the environment's own, and one fitted to the dataset's terminals."""
GUIDED = Imagining(horizon=32, real_ratio=1 / 16, rollouts=8192, refresh_every=10_000, generations=1)
"""Policy-guided diffusion's own numbers: 8192 trajectories of 32 steps every 10,000 updates, 240 + 16 rows a batch."""


@dataclass
class DiffusionSettings:
    """Trajectory diffusion, with ``world=diffusion``.

    Guided by default, as in ``worldrl reproduce pgd``: without guidance it samples the data's policy.
    """

    model: TrajectoryDiffusionConfig = field(default_factory=TrajectoryDiffusionConfig)
    training: TrajectoryTraining = field(default_factory=TrajectoryTraining)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    guidance: GuidanceConfig = field(default_factory=lambda: GuidanceConfig(coefficient=1.0))


def published_diffusion() -> DiffusionSettings:
    """Policy-guided diffusion's own sizes, for a GPU: 178 million parameters, 10,000 epochs, 256 steps per sample."""
    return DiffusionSettings(
        published_trajectory_diffusion(), published_trajectory_training(), sampler=published_sampler()
    )


@dataclass(frozen=True)
class Opened:
    """A dataset, its :class:`~worldrl.rollout.imagined.latent_world.LatentWorld`, and tasks of its episodes (both for latents only)."""

    data: Trajectories
    world: LatentWorld | None = None
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imagined:
    """Imagination of an algorithm."""

    imagination: Imagination | None  # makes generations of rows; None without imagination
    world: Any  # a StateWorld, where single steps exist
    report: dict[str, Any]  # JSON-ready, of its training


def open_data(settings: Any, device: torch.device) -> Opened:
    """Read the dataset of the settings: vectors, or with ``world=latent`` recorded episodes through a codec."""
    if settings.world != "latent":
        data = open_trajectories(settings.data, **reading(settings))
        print_remarks(data)
        return Opened(data.head(settings.rows) if settings.rows else data)
    model = open_world_model(weights_folder(settings.world_model), device)
    if not isinstance(model, VideoWorldModel):
        raise SettingError(
            f"world_model: {settings.world_model} is a Wan model; world=latent needs a video world model"
        )
    require_one_view(model, "world=latent")
    dataset = open_recorded(settings.data, model.config.codec.images)
    require_image_size(dataset, model.config.codec.image_size, f"the size of world_model={settings.world_model}")
    episodes = dataset.load()
    tasks = tuple(sorted({episode.task for episode in episodes}))
    recorded, encoder = recorded_latents(model, episodes, stride=settings.stride or None), None
    if settings.keypoints:
        latents = recorded if settings.stride == 1 else recorded_latents(model, episodes, stride=1)
        encoder, _ = fit_keypoints(latents, model.codec.latent_shape, settings.keypoints, seed=settings.seed)
        recorded = recorded.through(encoder.to(device))
    basis = ChunkBasis.of(recorded.rows.action, settings.components) if settings.components else None
    if basis is not None:
        recorded, basis = recorded.in_basis(basis), basis.to(device)
    known = limit_in_chunks(tasks, model) if set(tasks) <= embedded_tasks() else None
    data = latent_trajectories(recorded, settings.data, settings.max_episode_steps or known)
    return Opened(
        data, LatentWorld(model, recorded.records, SuccessRule.of(model.config.outcome), encoder, basis), tasks
    )


def save_view(opened: Opened, folder: Path) -> None:
    """Save the encoder of observations and the basis of actions beside an agent of latents."""
    if opened.world is not None:
        parts = {KEYPOINTS: opened.world.encoder, COMPONENTS: opened.world.basis}
        for name, part in parts.items():
            if part is not None:
                part.save(folder / name)


def latent_trajectories(recorded: RecordedLatents, source: str, limit: int | None = None) -> Trajectories:
    """Recorded latents as a dataset with episodes of at most ``limit`` chunks."""
    rows, size = recorded.rows, recorded.rows.action.shape[1]
    columns = {item.name: getattr(rows, item.name).numpy() for item in fields(rows)}
    columns["action"] = columns["action"].astype(np.float32)
    info = DatasetInfo(source, (-1.0,) * size, (1.0,) * size, max_episode_steps=limit)
    return Trajectories(**columns, episode=recorded.episode.numpy().astype(np.int64), info=info)


def open_imagined(
    settings: Any, opened: Opened, rows: Transitions, *, folder: Path, log: MetricLog, device: torch.device
) -> Imagined:
    """Open the world of the settings for ``rows`` on ``device``; SettingError where the dataset lacks something it needs."""
    if settings.world == "none":
        return Imagined(None, None, {})
    data, report = opened.data, dict[str, Any]()
    if settings.world == "diffusion":
        return _diffusion(settings, data, rows, folder, log, device)
    if settings.world == "ensemble":
        world, report = _ensemble(settings, data, rows, folder, log, device)
    else:
        world = opened.world or true_world(data, rows)
    return Imagined(rollouts_in(world, len(rows), settings.imagining, settings.planner), world, report)


def true_world(data: Trajectories, rows: Transitions) -> TrueDynamics:
    """The dataset's own simulator, set to its recorded states; SettingError without states or environment."""
    if data.qpos is None or data.qvel is None or data.info.env_id is None:
        raise SettingError(
            f"world=true: {data.info.source} holds no simulator states (qpos, qvel) or names no environment; "
            "make one with worldrl make-dataset, or choose world=ensemble"
        )
    return TrueDynamics(registered_id(data.info.env_id), rows.obs, data.qpos, data.qvel, data.info.env_kwargs)


def rule_of(name: str, info: DatasetInfo) -> Termination:
    """Termination rule called ``name``; ``auto`` takes that of the data's environment, also by a D4RL file's name."""
    if name != AUTO:
        return registry.TERMINATIONS.get(name)
    env_id = info.env_id or (info.dataset_id if task_of(info.dataset_id) else None)
    if env_id is None:
        raise SettingError(
            "termination=auto needs the data's environment; give env=ID, termination=never, termination=learned or a registered rule"
        )
    return termination_rule(env_id, info.env_kwargs)


def held_rule(name: str, data: Trajectories, rows: Transitions) -> Termination:
    """Rule called ``name``, compared with the recorded terminals; SettingError where it contradicts the data.

    ``never`` is a deliberate choice against the data, so its contradictions are printed instead of refused.
    """
    rule = rule_of(name, data.info)
    if name == NEVER:
        if ended := int(rows.terminated.sum()):
            console().print(
                f"termination=never: {ended} of {len(data)} rows are recorded as terminal, no imagined rollout will end",
                soft_wrap=True,
            )
        return rule
    about = name if name != AUTO else f"{data.info.env_id or data.info.dataset_id} (auto)"
    check_rule(rule, rows, name=about, source=data.info.source)
    return rule


def _ensemble(
    settings: Any, data: Trajectories, rows: Transitions, folder: Path, log: MetricLog, device: torch.device
) -> tuple[EnsembleWorld, dict[str, Any]]:
    if settings.termination == LEARNED:
        rule: Termination = fit_termination(
            "termination", rows, seed=settings.seed, folder=folder.with_name("termination"), log=log
        )
    else:
        rule = held_rule(settings.termination, data, rows)
    with _place_of_ensemble(settings, rows, folder, device) as place:
        ensemble, report = fit_ensemble(
            "world",
            rows,
            settings.ensemble,
            settings.ensemble_training,
            seed=settings.seed,
            folder=place,
            log=log,
            device=device,
        )
    if report.stopped == "max_epochs":
        console().print(
            f"world: cut at ensemble_training.max_epochs={report.epochs}, before patience ended the training; an agent exploits "
            "the errors of an unfinished world model (docs/reference/offline-worlds.md)"
        )
    return EnsembleWorld(ensemble, rows.obs, rule, world_config(settings)), report.to_json()


def _place_of_ensemble(
    settings: Any, rows: Transitions, folder: Path, device: torch.device
) -> AbstractContextManager[Path]:
    """Folder of its checkpoints: the run's own, or one shared by all runs that would train the same ensemble."""
    if settings.worlds is None:
        return nullcontext(folder)
    identity = [asdict(settings.ensemble), asdict(settings.ensemble_training), settings.seed, str(device)]
    name = hashlib.sha256(json.dumps(identity).encode())
    for column in (rows.obs, rows.action, rows.reward, rows.next_obs):
        name.update(column.cpu().numpy().tobytes())
    return exclusive_folder(Path(settings.worlds) / f"ensemble-{name.hexdigest()[:16]}")


def world_config(settings: Any) -> EnsembleWorldConfig:
    """Measure uncertainty only where it is used, since it costs all members; NEUBAY's rollouts keep their member."""
    kind = Uncertainty(settings.uncertainty)
    if settings.algorithm == Neubay.name:
        return EnsembleWorldConfig(MemberChoice.rollout, kind, "elites")
    asked = settings.imagining.penalty > 0 or settings.planner.use != "none"
    return EnsembleWorldConfig(uncertainty=kind if asked else Uncertainty.none)


def _diffusion(
    settings: Any, data: Trajectories, rows: Transitions, folder: Path, log: MetricLog, device: torch.device
) -> Imagined:
    plan: DiffusionSettings = settings.diffusion
    if settings.imagining.horizon != plan.model.length:
        raise SettingError(
            f"imagining.horizon must be diffusion.model.length={plan.model.length}, the steps of a trajectory, got "
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
    guided = GuidedRollouts(model, GuidedRolloutConfig(settings.imagining.rollouts), plan.sampler, plan.guidance)
    numbers = {"windows": report.windows, "validation_loss": report.validation_loss}
    return Imagined(FirstUnguided(guided), None, numbers)


class FirstUnguided:
    """Guided rollouts with an unguided first generation: an untrained agent cannot guide."""

    def __init__(self, guided: GuidedRollouts) -> None:
        self.guided = guided

    def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
        """Draw one generation."""
        return self.guided.generate(agent if agent.updates else None, generator=generator)
