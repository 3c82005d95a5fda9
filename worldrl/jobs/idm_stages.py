"""What ``train-idm``, ``train-vla`` and ``reproduce eva`` share: learn an inverse dynamics, cut clips, measure its rewards' basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog
from worldrl.core.types import Episode
from worldrl.rewards.basis import MotionBasis, measure_basis
from worldrl.rewards.calibration import read_episodes
from worldrl.rewards.columns import Column, column_values
from worldrl.rewards.idm_training import IdmFrames, IdmTraining, Restore, fit_idm, new_idm, scale_deviations
from worldrl.rewards.inverse_dynamics import IdmConfig, InverseDynamics
from worldrl.rewards.limits import JointLimits
from worldrl.world_models.codec import to_unit
from worldrl.world_models.video import VideoWorldModel

IDM = "idm"
"""Folder name of the artefact inside a stage."""


def through_codec(model: VideoWorldModel, *, batch: int = 64) -> Restore:
    """Show frames as a world model's codec, and its frame restorer, give them back: imagined frames look like that."""

    @torch.no_grad()
    def restore(frames: Tensor, first: Tensor) -> Tensor:
        parts = []
        for part, begun in zip(frames.split(batch), first.split(batch), strict=True):
            with model.autocast():
                latent = model.codec.encode(to_unit(part.to(model.device))[:, None]).float()
            parts.append(model.decode(latent, begun)[:, 0].cpu())
        return torch.cat(parts)

    return restore


def learn_idm(
    folder: Path,
    episodes: Sequence[Episode],
    calibration: Sequence[Episode],
    columns: Sequence[Column],
    *,
    config: IdmConfig,
    training: IdmTraining,
    frame_stride: int,
    camera: str,
    restore: Restore | None,
    seed: int,
    device: torch.device,
    log: MetricLog | None,
    series: str = "idm",
) -> InverseDynamics:
    """Train an inverse dynamics and scale its deviations on other episodes; checkpoints go to ``folder/checkpoints``."""
    data = IdmFrames.of(episodes, columns, frame_stride=frame_stride, camera=camera, restore=restore)
    idm = new_idm(config, columns, data, frame_stride=frame_stride, seed=seed).to(device)
    fit_idm(idm, data, training, seed=seed, folder=folder / "checkpoints", log=log, series=series)
    looks = (None,) if restore is None else (None, restore)
    readings = [read_episodes(idm, calibration, camera=camera, restore=look) for look in looks]
    scores = np.concatenate([score for reading in readings for score in reading.scores])
    scale_deviations(idm, torch.from_numpy(scores))
    return idm


def motion_basis(
    idm: InverseDynamics,
    training: Sequence[Episode],
    frames: Tensor,
    *,
    dt: float,
    limits: JointLimits | None,
    frame_stride: int,
    camera: str,
) -> tuple[MotionBasis, Tensor, Tensor]:
    """Measure the constants of the motion rewards on real clips, and on their first frames standing still.

    Args:
        idm: reads positions.
        training: episodes whose motion gives the bounds.
        frames: uint8 ``[N, T, Y, X, 3]`` of episodes that it has not learned from.
        dt: seconds between frames.
        limits: bounds; None measures them.
        frame_stride: control steps between frames.
        camera: which camera.

    Returns:
        The constants, and what was read off the real and the still clips, ``[N, T, D]`` each.
    """
    if limits is None:
        _, known = clips(training, idm.columns, frames=frames.shape[1], frame_stride=frame_stride, camera=camera)
        limits = JointLimits.measured(list(known), dt)
    real, still = (idm.decode(shown).mean.cpu() for shown in (frames, frames[:, :1].expand_as(frames)))
    return measure_basis(real, still, dt, limits), real, still


def clips(
    episodes: Sequence[Episode], columns: Sequence[Column], *, frames: int, frame_stride: int, camera: str
) -> tuple[Tensor, Tensor]:
    """Cut episodes into clips of equal length, one after the other; rests are left out.

    Args:
        episodes: recorded.
        columns: what is read there.
        frames: of each clip.
        frame_stride: control steps between them.
        camera: which camera.

    Returns:
        Frames uint8 ``[N, T, Y, X, 3]`` and recorded columns float32 ``[N, T, D]``.

    Raises:
        SettingError: fewer than two clips.
    """
    pictures, values = [], []
    for episode in episodes:
        view = episode.frames[::frame_stride, episode.cameras.index(camera)]
        value = column_values(episode, columns, frame_stride)[::frame_stride]
        known = int(np.isfinite(value).all(axis=1).sum())
        for first in range(0, known - frames + 1, frames):
            pictures.append(view[first : first + frames])
            values.append(value[first : first + frames])
    if len(pictures) < 2:
        raise SettingError(
            f"clip_frames: the held-out episodes hold {len(pictures)} clips of {frames} frames, at least 2 needed"
        )
    return torch.from_numpy(np.stack(pictures)), torch.from_numpy(np.stack(values))
