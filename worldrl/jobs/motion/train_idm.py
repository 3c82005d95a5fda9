"""``worldrl train-idm``: recorded episodes to an inverse dynamics model that reads poses or actions off images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldrl.core.device import resolve_device, set_threads
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.run import RunDirectory
from worldrl.core.training.ranks import rank, rank_device
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.report.card import write_card
from worldrl.evaluation.report.store import publish
from worldrl.jobs.motion.idm_execution import executions
from worldrl.jobs.motion.idm_report import IdmFindings, report_page, show
from worldrl.nn.vision import SIDES
from worldrl.recipes.motion.idm_stages import (
    IDM,
    clips,
    grasp_errors,
    learn_grasp,
    learn_idm,
    motion_basis,
    through_codec,
)
from worldrl.recipes.run import open_run
from worldrl.recipes.several import together
from worldrl.recipes.stages import split_held_out
from worldrl.recipes.tracking import Tracked
from worldrl.recipes.training_data import open_datasets, require_image_size
from worldrl.recipes.world_model.lineage import lineage
from worldrl.recipes.world_model.start import images_of, weights_folder
from worldrl.rewards.config import GraspConfig, IdmConfig, IdmTraining
from worldrl.rewards.grasp import GRASP_FOLDER, Closings
from worldrl.rewards.motion.acceptance import acceptance
from worldrl.rewards.motion.basis import MotionBasis
from worldrl.rewards.motion.calibration import by_unit, calibration, read_episodes
from worldrl.rewards.motion.executability import jerk_spike_rate, penalty, violation_rate
from worldrl.rewards.motion.foresight import MOVING, PHYSICAL, PREDICTOR, ForesightConfig, fit_foresight
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.limits import piper_bimanual
from worldrl.rewards.motion.published import PUBLISHED_EXECUTABILITY, fits_published, published_executability
from worldrl.rewards.motion.readout import Column, choose_columns, recorded_names
from worldrl.rewards.motion.similarity import action_similarity
from worldrl.rewards.motion.training import Restore
from worldrl.rollout.imagined.decoded_plans import check_targets
from worldrl.settings import fraction, non_negative, one_of, positive, setting
from worldrl.world_models.video.model import VideoWorldModel

LIMITS = ("measured", "piper")
LOOKS = ("recorded", "restored")
"""Frames as recorded, and as a world model's codec gives them back."""


@dataclass
class TrainIdmSettings(Tracked):
    """What is read off which images."""

    run_dir: str = setting("runs/train-idm", "where everything is written; the model goes to run_dir/idm")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    threads: int = setting(2, "torch threads")
    data: list[str] = setting(["runs/collect/dataset"], "dataset folders; episodes of all are pooled")
    camera: str = setting("scene", "recorded camera whose images it reads")
    target: list[str] = setting(
        ["state"], "recorded columns it predicts: state, command or action, whole or by part (state.x, state.0:14)"
    )
    frame_stride: int = setting(1, "control steps between the frames of the videos it will read")
    world_model: str | None = setting(
        None, "bundled or a world-model folder: train and calibrate on frames decoded by its codec, too"
    )
    latent_noise: float = setting(
        0.1, "with world_model: noise on the codec's latents, since imagined latents are inexact"
    )
    held_out: float = setting(0.3, "share of the episodes kept apart: half scales the deviations, half is reported")
    limits: str = setting(
        "measured", "bounds of the motion rewards: measured (on real motion) or piper (EVA's, 14 joints)"
    )
    clip_frames: int = setting(
        16,
        "frames of the held-out clips that noise floor and acceptance probe are measured on: as many as the videos that it will reward",
    )
    temperature: float = setting(0.25, "of the action-similarity reward in the acceptance probe")
    executed: int = setting(
        0,
        "held-out successes (of both halves) whose decoded videos the simulator executes; of joint targets, with target=[command]",
    )
    model: IdmConfig = field(default_factory=IdmConfig)
    training: IdmTraining = field(default_factory=IdmTraining)
    foresight: ForesightConfig = field(default_factory=ForesightConfig)
    grasp: GraspConfig = field(default_factory=GraspConfig)

    def __post_init__(self) -> None:
        """Check the ranges."""
        fraction("held_out", self.held_out)
        non_negative("executed", self.executed)
        non_negative("latent_noise", self.latent_noise)
        one_of("limits", self.limits, LIMITS)
        for name in ("frame_stride", "threads", "clip_frames", "temperature"):
            positive(name, getattr(self, name))
        if self.clip_frames < 4:
            raise SettingError(f"clip_frames must be at least 4 (a jerk needs four), got {self.clip_frames}")
        if not self.data:
            raise SettingError("data must name at least one dataset folder; record one with worldrl collect")


def main(settings: TrainIdmSettings) -> dict[str, Any]:
    """Learn, calibrate, measure, save.

    Returns the metrics: errors and coverage per column, noise floor, acceptance probe. Raises SettingError (no such
    column, or too few episodes).
    """
    device = rank_device(resolve_device(settings.device))
    set_threads(settings.threads)
    with together(settings, device):
        return _train(settings, device)


def _train(settings: TrainIdmSettings, device: torch.device) -> dict[str, Any]:
    data = open_datasets(settings.data, None if settings.world_model is None else images_of(settings.world_model))
    pooled = data[0].concatenate(*data[1:])
    check_images(settings, data[0])
    columns = choose_columns(settings.target, recorded_names(pooled.embodiment))
    if settings.executed:
        check_targets(columns, pooled.embodiment.actions)
    if rank() > 0:
        return _help(settings, pooled, columns, device)
    with open_run("train-idm", settings) as run, MetricLog(run.path, settings.tracker) as log:
        episodes = pooled.load()
        training, scaling, held_out = split_held_out(list(episodes), settings.held_out, seed=settings.seed)
        if not held_out:
            raise SettingError(f"held_out: {settings.held_out} of {len(episodes)} episodes is not two; raise it")
        restore = open_restore(settings, device)
        look = {"frame_stride": settings.frame_stride, "camera": settings.camera, "restore": restore}
        sizes = {"config": settings.model, "training": settings.training}
        idm = learn_idm(
            run.path, training, scaling, columns, **sizes, **look, seed=settings.seed, device=device, log=log
        )
        dt = settings.frame_stride / pooled.embodiment.control_hz
        given = dict(zip(settings.data, data, strict=True))
        parents, learned = lineage(given, [settings.world_model] if settings.world_model else [])
        made_from = {"parents": parents, "learned": learned}
        readings = {
            look: read_episodes(idm, held_out, camera=settings.camera, restore=shown)
            for look, shown in zip(LOOKS, (None, restore) if restore else (None,), strict=False)
        }
        metrics = {
            "episodes": {"training": len(training), "scaling": len(scaling), "held_out": len(held_out)},
            "backbone": idm.begun,
            "frames": int(sum(len(true) for true in readings["recorded"].true)),
            "errors": {look: calibration(reading, seed=settings.seed) for look, reading in readings.items()},
            "by_unit": {look: by_unit(reading, seed=settings.seed) for look, reading in readings.items()},
            **measured_rewards(settings, idm, training, held_out, dt, restore),
            "foresight": learn_foresight(run, settings, idm, (training, held_out), restore, log, made_from),
            "grasp": grasp_beside(run, settings, [training, scaling, held_out], device, log, made_from),
            "executed": executions(
                idm, [*held_out, *scaling], settings.executed, camera=settings.camera, restore=restore
            ),
        }
        idm.save(run.path / IDM, **made_from)
        metrics["hash"] = artefact_hash(run.path / IDM)
        run.write_result(metrics, seed=settings.seed, device=str(device))
        write_card(run.path / IDM)
        findings = IdmFindings(metrics, readings["recorded"], dt)
        publish(run, report_page(findings, run.config["data"], seed=settings.seed, device=str(device)))
        show(findings, run.path)
    return metrics


def _help(
    settings: TrainIdmSettings, pooled: EpisodeDataset, columns: Sequence[Column], device: torch.device
) -> dict[str, Any]:
    """Train along in another process than the first, which alone writes and measures."""
    training, scaling, _ = split_held_out(list(pooled.load()), settings.held_out, seed=settings.seed)
    look = {"frame_stride": settings.frame_stride, "camera": settings.camera, "restore": open_restore(settings, device)}
    sizes = {"config": settings.model, "training": settings.training}
    run = Path(settings.run_dir)
    learn_idm(run, training, scaling, columns, **sizes, **look, seed=settings.seed, device=device, log=None)
    return {}


def check_images(settings: TrainIdmSettings, dataset: EpisodeDataset) -> None:
    """Refuse images that the inverse dynamics or the codec before it cannot take, before any is decoded.

    Raises SettingError (naming the sizes and what to do).
    """
    if settings.world_model is not None:
        require_image_size(
            dataset, images_of(settings.world_model).side, f"the size of world_model={settings.world_model}"
        )
    elif not settings.model.backbone and any(side % SIDES for side in dataset.image_size):
        rows, columns = dataset.image_size
        require_image_size(
            dataset,
            max(SIDES, min(rows, columns) // SIDES * SIDES),
            f"of which both sides must be multiples of {SIDES}; the nearest square",
        )


def open_restore(settings: TrainIdmSettings, device: torch.device) -> Restore | None:
    """Open the codec that the settings name; None without one."""
    if settings.world_model is None:
        return None
    model = VideoWorldModel.load(weights_folder(settings.world_model), device)
    return through_codec(model, noise=settings.latent_noise, seed=settings.seed)


def measured_rewards(
    settings: TrainIdmSettings,
    idm: InverseDynamics,
    training: Sequence[Episode],
    held_out: Sequence[Episode],
    dt: float,
    restore: Restore | None,
) -> dict[str, Any]:
    """Measure the noise floor and run the acceptance probe; the floor's constants are kept with the model."""
    look = {"frames": settings.clip_frames, "frame_stride": settings.frame_stride, "camera": settings.camera}
    probed = clips(held_out, idm.columns, **look)

    def score(shown: Tensor, commanded: Tensor) -> Tensor:
        return action_similarity(idm.decode(shown).mean.cpu(), commanded, idm.deviation.cpu(), settings.temperature)

    accepted = acceptance(score, probed.frames, probed.values, generator=stream(settings.seed, "idm-acceptance"))
    if any(column.vector == "action" for column in idm.columns):
        return {"noise_floor": None, "acceptance": accepted}  # actions are no positions: they have no jerk to bound
    limits = None if settings.limits == "measured" else piper_bimanual()
    idm.basis, cut, real, still = motion_basis(idm, training, held_out, dt=dt, limits=limits, restore=restore, **look)
    return {"noise_floor": noise_floor(idm.basis, idm.columns, real, still, cut.values), "acceptance": accepted}


def noise_floor(
    basis: MotionBasis, columns: Sequence[Column], real: Tensor, still: Tensor, true: Tensor
) -> dict[str, Any]:
    """What every motion reward gives real videos, still ones and the recorded motion itself: medians over clips."""
    shown = {"real": real, "still": still, "recorded": true}
    measures = {
        "penalty": partial(penalty, constants=basis.constants),
        **basis.rewards,
        **({PUBLISHED_EXECUTABILITY: published_executability} if fits_published(columns) else {}),
        "violation_rate": violation_rate,
        "jerk_spike_rate": jerk_spike_rate,
    }
    found = {
        name: {which: float(measure(q, basis.dt, basis.limits).median()) for which, q in shown.items()}
        for name, measure in measures.items()
    }
    return {"clips": len(real), "p0": basis.constants.p0, "medians": found}


def learn_foresight(
    run: RunDirectory,
    settings: TrainIdmSettings,
    idm: InverseDynamics,
    split: tuple[Sequence[Episode], Sequence[Episode]],
    restore: Restore | None,
    log: MetricLog,
    made_from: dict[str, Any],
) -> dict[str, Any] | None:
    """Train the feature predictor on the frozen encoder's features, and save it to ``run_dir/foresight``; None without steps."""
    if not settings.foresight.steps:
        return None
    training, held_out = split
    features = [_features(settings, idm, episode) for episode in training]
    predictor, _ = fit_foresight(
        settings.foresight, features, seed=settings.seed, folder=run.path / "checkpoints-foresight", log=log
    )
    cut = {"frames": predictor.span + 4, "frame_stride": settings.frame_stride, "camera": settings.camera}
    apart = clips(held_out, idm.columns, **cut)
    order = torch.randperm(apart.frames.shape[1], generator=stream(settings.seed, "idm-foresight"))
    videos = {
        "real": apart.frames,
        "still": apart.frames[:, :1].expand_as(apart.frames),
        "shuffled": apart.frames[:, order],
    }
    encoded = {name: idm.encode(apart.shown(video, restore)) for name, video in videos.items()}
    predictor.measure_pace(encoded["real"], encoded["still"])
    predictor.save(run.path / PREDICTOR, **made_from)
    return {
        term: {name: float(reward(features).median()) for name, features in encoded.items()}
        for term, reward in ((MOVING, predictor.moving_reward), (PHYSICAL, predictor.reward))
    }


def grasp_beside(
    run: RunDirectory,
    settings: TrainIdmSettings,
    split: Sequence[Sequence[Episode]],
    device: torch.device,
    log: MetricLog,
    made_from: dict[str, Any],
) -> dict[str, Any] | None:
    """Train an inverse dynamics of the grasp beside it, and save it to ``run_dir/grasp``; None without steps."""
    if not settings.grasp.steps:
        return None
    training, scaling, held_out = split
    data, kept = (
        Closings.of(training, camera=settings.camera),
        Closings.of(scaling, camera=settings.camera, first_only=True),
    )
    grasp = learn_grasp(run.path, data, kept, settings.grasp, seed=settings.seed, device=device, log=log)
    grasp.save(run.path / GRASP_FOLDER, **made_from)
    return grasp_errors(grasp, held_out, camera=settings.camera, seed=settings.seed)


def _features(settings: TrainIdmSettings, idm: InverseDynamics, episode: Episode) -> Tensor:
    view = episode.frames[:: settings.frame_stride, episode.cameras.index(settings.camera)]
    return idm.encode(torch.from_numpy(view.copy())[None])[0]
