"""What ``train-idm``, ``train-vla`` and ``reproduce eva`` share: learn an inverse dynamics, cut clips, measure its rewards' basis."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream, stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.storage.log import MetricLog, Progress, console
from worldrl.core.training.ranks import rank
from worldrl.core.types import Episode
from worldrl.rewards.config import GraspConfig, IdmConfig, IdmTraining
from worldrl.rewards.grasp import (
    GRASP_FOLDER,
    Closings,
    GraspDynamics,
    closing_of,
    fit_grasp,
    measure_deviation,
    position_names,
)
from worldrl.rewards.motion.basis import MotionBasis, measure_basis
from worldrl.rewards.motion.calibration import read_episodes
from worldrl.rewards.motion.inverse_dynamics import IDM_FOLDER, InverseDynamics
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.readout import Column, column_values
from worldrl.rewards.motion.training import IdmFrames, Restore, begin_with, fit_idm, new_idm, scale_deviations
from worldrl.world_models.video.codec import to_unit
from worldrl.world_models.video.model import VideoWorldModel

CODEC_SERIES, MANY = "through the codec", 4096
"""What progress is called while frames go through a codec, and how many of them take long enough to show it."""
IDM = IDM_FOLDER  # Folder name of the artefact inside a stage


def through_codec(model: VideoWorldModel, *, noise: float = 0.0, seed: int = 0, batch: int = 64) -> Restore:
    """Show frames as a world model's codec and restorer give them back, ``batch`` at once: imagined frames look so.

    ``noise`` is the deviation of what each frame's latents get, the same in every call: imagined latents are inexact,
    and a still life trembles as an imagined one does.
    """

    @torch.no_grad()
    def restore(frames: Tensor, first: Tensor) -> Tensor:
        parts, draw = [], stream(seed, "codec-noise")
        with Progress(CODEC_SERIES, len(frames), unit="frames") if len(frames) > MANY else nullcontext() as progress:
            for part, begun in zip(frames.split(batch), first.split(batch), strict=True):
                with model.autocast():
                    latent = model.codec.encode(to_unit(part.to(model.device))[:, None]).float()
                latent = latent + noise * torch.randn(latent.shape, generator=draw).to(latent.device)
                parts.append(model.decode(latent, begun)[:, 0].cpu())
                if progress is not None:
                    progress.advance(len(part))
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
    idm = new_idm(config, columns, data, frame_stride=frame_stride, seed=seed)
    idm.begun = begin_with(idm, training)
    if idm.begun and rank() == 0:
        console().print(idm.begun, markup=False)
    idm.to(device)
    fit_idm(idm, data, training, seed=seed, folder=folder / "checkpoints", log=log, series=series)
    looks = (None,) if restore is None else (None, restore)
    readings = [read_episodes(idm, calibration, camera=camera, restore=look) for look in looks]
    scores = np.concatenate([score for reading in readings for score in reading.scores])
    scale_deviations(idm, torch.from_numpy(scores))
    return idm


def learn_grasp(
    folder: Path,
    data: Closings,
    kept: Closings,
    config: GraspConfig,
    *,
    seed: int,
    device: torch.device,
    log: MetricLog | None,
    series: str = GRASP_FOLDER,
) -> GraspDynamics:
    """Train an inverse dynamics of the grasp and measure its error on kept closings; checkpoints go to ``folder/checkpoints-grasp``."""
    checkpoints = folder / "checkpoints-grasp"
    grasp, _ = fit_grasp(config, data, seed=seed, device=device, folder=checkpoints, log=log, series=series)
    measure_deviation(grasp, kept)
    return grasp


def grasp_errors(grasp: GraspDynamics, held_out: Sequence[Episode], *, camera: str, seed: int) -> dict[str, Any] | None:
    """Median absolute error of each column on held-out closings, with its interval over them; None where there is no closing."""
    if not any(closing_of(episode) >= 0 for episode in held_out):
        return None
    apart = Closings.of(held_out, camera=camera, first_only=True)
    error = (apart.commanded - grasp.read(apart.frame, apart.instruction)).abs().double().numpy()
    return {
        name: bootstrap(error[:, d], np.median, generator=numpy_stream(seed, "grasp", name))
        for d, name in enumerate(position_names(grasp.actions))
    }


def motion_basis(
    idm: InverseDynamics,
    training: Sequence[Episode],
    held_out: Sequence[Episode],
    *,
    frames: int,
    dt: float,
    limits: JointLimits | None,
    frame_stride: int,
    camera: str,
    restore: Restore | None,
) -> "tuple[MotionBasis, Clips, Tensor, Tensor]":
    """Measure the constants of the motion rewards on real clips, and on their first frames standing still.

    Bounds are measured on the training episodes unless ``limits`` gives them. The held-out clips have as many frames as
    the videos to be scored and overlap, so that every part of a motion counts. Returns the constants, the clips, and
    what was read off them and off the still ones, ``[N, T, D]`` each.
    """
    if limits is None:
        limits = JointLimits.measured(
            [torch.from_numpy(known_values(e, idm.columns, frame_stride)) for e in training], dt
        )
    cut = clips(held_out, idm.columns, frames=frames, apart=-(-frames // 2), frame_stride=frame_stride, camera=camera)
    real, still = (
        idm.decode(cut.shown(view, restore)).mean.cpu()
        for view in (cut.frames, cut.frames[:, :1].expand_as(cut.frames))
    )
    return measure_basis(real, still, dt, limits), cut, real, still


@dataclass(frozen=True)
class Clips:
    """Parts of recorded episodes, all of one length."""

    frames: Tensor  # uint8 `[N, T, Y, X, 3]`
    values: Tensor  # recorded columns, float32 `[N, T, D]`
    first: Tensor  # uint8 `[N, Y, X, 3]`, the first frame of each one's episode

    def shown(self, frames: Tensor, restore: Restore | None) -> Tensor:
        """Show frames ``[N, T, Y, X, 3]`` of these episodes as they are, or as ``restore`` does."""
        if restore is None:
            return frames
        begun = self.first[:, None].expand_as(frames)
        return restore(frames.flatten(0, 1), begun.flatten(0, 1)).unflatten(0, frames.shape[:2])


def clips(
    episodes: Sequence[Episode],
    columns: Sequence[Column],
    *,
    frames: int,
    frame_stride: int,
    camera: str,
    apart: int | None = None,
) -> Clips:
    """Cut episodes into clips of equal length, ``apart`` frames between beginnings; SettingError for fewer than two.

    The last clip then ends where its episode does; ``apart=None`` cuts one after the other and leaves rests out.
    """
    pictures, values, begun = [], [], []
    for episode in episodes:
        view = episode.frames[::frame_stride, episode.cameras.index(camera)]
        value = known_values(episode, columns, frame_stride)
        for first in beginnings(len(value) - frames, frames if apart is None else apart, whole=apart is not None):
            pictures.append(view[first : first + frames])
            values.append(value[first : first + frames])
            begun.append(view[0])
    if len(pictures) < 2:
        raise SettingError(
            f"clip_frames: the held-out episodes hold {len(pictures)} clips of {frames} frames, at least 2 needed"
        )
    return Clips(*(torch.from_numpy(np.stack(part)) for part in (pictures, values, begun)))


def beginnings(last: int, apart: int, *, whole: bool) -> list[int]:
    """Return 0, ``apart``, 2 ``apart``, ... up to ``last``, and ``last`` itself where ``whole``; none where ``last`` is negative."""
    if last < 0:
        return []
    return sorted({*range(0, last + 1, apart), *([last] if whole else [])})


def known_values(episode: Episode, columns: Sequence[Column], frame_stride: int) -> NDArray[np.float32]:
    """Return columns float32 ``[T, D]`` at every ``frame_stride``-th frame of an episode that has all of them."""
    values = column_values(episode, columns, frame_stride)[::frame_stride]
    return values[np.isfinite(values).all(axis=1)]
