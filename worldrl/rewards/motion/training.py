"""Training of an inverse dynamics, and the scaling of its deviations on held-out episodes.

The likelihood is Gaussian with a predicted deviation. Each term is weighted with σ^{2β} (β-NLL: Seitzer et al. 2022,
"On the Pitfalls of Heteroscedastic Uncertainty Estimation"). With β = 0 a large σ hides what is hard at first::

    L = mean_d sg(σ_d^{2β}) [ (y_d - μ_d)² / (2 σ_d²) + ln σ_d ]

Shapes legend: ``R`` frames of all episodes, ``B`` rows, ``W`` frames of a window, ``D`` columns.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.rng import draw, initial_weights, own_rows
from worldrl.core.storage.capacity import require_model_memory
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode
from worldrl.data.windows.frame_store import build_store
from worldrl.nn.backbone import BackboneEncoder
from worldrl.nn.vision import colour_jitter
from worldrl.rewards.config import IdmConfig, IdmTraining
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import Column, column_values

Restore = Callable[[Tensor, Tensor], Tensor]
"""Passes frames uint8 ``[N, Y, X, 3]`` through a codec; the second argument is each episode's first frame."""
COVERED, WITHIN = 0.9, 1.6449  # the deviations are scaled so that 90 % of the errors are within 1.64 of them
LEAST_DEVIATION = 1e-3  # lower bound of a column's deviation in the normalisation, in its unit


def as_shown(frames: Tensor, restore: Restore | None) -> Tensor:
    """Frames uint8 ``[T, Y, X, 3]`` of an episode, from its first on, as recorded or through the codec."""
    return frames if restore is None else restore(frames, frames[:1].expand_as(frames))


@dataclass(frozen=True)
class IdmFrames:
    """Frames with their targets."""

    frame: Tensor  # uint8 ``[R, Y, X, 3]``.
    restored: Tensor | None  # the same through a codec; None without one.
    target: Tensor  # float32 ``[R, D]``, NaN for no target.
    first: Tensor  # int64 ``[R]``, row of the first frame of the same episode.
    last: Tensor  # int64 ``[R]``, row of the last one.

    @classmethod
    def of(
        cls,
        episodes: Sequence[Episode],
        columns: Sequence[Column],
        *,
        frame_stride: int,
        camera: str,
        restore: Restore | None,
    ) -> "IdmFrames":
        """Copy one camera's frames; SettingError: no episode has a target; ArtefactError: one lacks the camera."""
        store = build_store(episodes, camera)
        frame = torch.from_numpy(np.asarray(store.frames))
        values = [column_values(episode, columns, frame_stride) for episode in episodes]
        target = torch.from_numpy(np.concatenate(values))
        if not torch.isfinite(target).all(dim=1).any():
            raise SettingError(f"target: no episode has {frame_stride} actions; lower frame_stride")
        first, rows = torch.from_numpy(store.first), torch.from_numpy(store.length + 1)
        last = first + rows - 1
        return cls(
            frame=frame,
            restored=None if restore is None else restore(frame, frame[first.repeat_interleave(rows)]),
            target=target,
            first=first.repeat_interleave(rows),
            last=last.repeat_interleave(rows),
        )

    def window(self, row: Tensor, offsets: Sequence[int], through_codec: Tensor | None) -> Tensor:
        """Frames uint8 ``[B, W, Y, X, 3]`` around ``row`` ``[B]``, restored where ``through_codec`` ``[B]`` is true."""
        at = torch.stack([row + offset for offset in offsets], dim=1)
        at = torch.minimum(torch.maximum(at, self.first[row, None]), self.last[row, None])
        frames = self.frame[at]
        if self.restored is not None and through_codec is not None:
            frames[through_codec] = self.restored[at[through_codec]]
        return frames


def new_idm(
    config: IdmConfig, columns: Sequence[Column], data: IdmFrames, *, frame_stride: int, seed: int
) -> InverseDynamics:
    """Make an untrained inverse dynamics with the data's normalisation."""
    if not config.backbone:
        require_model_memory(lambda: InverseDynamics(config, columns, frame_stride), torch.device("cpu"), "model")
    with initial_weights(seed, "idm"):
        idm = InverseDynamics(config, columns, frame_stride)
    target = data.target[torch.isfinite(data.target).all(dim=1)].double()
    idm.mean.copy_(target.mean(dim=0))
    idm.deviation.copy_(target.std(dim=0, correction=0).clamp_min(LEAST_DEVIATION))
    return idm


def begin_with(idm: InverseDynamics, training: IdmTraining) -> str | None:
    """Load the backbone's weights, if any; describe what it begins with, None without a backbone.

    Raises SettingError: weights without a backbone; ArtefactError: the file is missing, damaged or of another model.
    """
    file = training.backbone_weights
    if not isinstance(idm.encoder, BackboneEncoder):
        if file:
            raise SettingError(f"training.backbone_weights: {file} needs a backbone; give model.backbone=NAME too")
        return None
    if not file:
        return f"backbone {idm.encoder.name} begins at random; training.backbone_weights=FILE gives it weights"
    idm.encoder.load_weights(Path(file))
    return (
        f"backbone {idm.encoder.name} begins with {file} ({hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]})"
    )


def beta_nll(mean: Tensor, log_std: Tensor, target: Tensor, beta: float) -> Tensor:
    """β-NLL ``[B, D]`` of standardised targets, without the constant ½ ln 2π."""
    variance = (2 * log_std).exp()
    likelihood = 0.5 * (target - mean).square() / variance + log_std
    return variance.detach().pow(beta) * likelihood


def fit_idm(
    idm: InverseDynamics,
    data: IdmFrames,
    training: IdmTraining,
    *,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "idm",
) -> FitReport:
    """Train in place on frames held in memory; a stopped training resumes bit for bit."""
    usable = torch.isfinite(data.target).all(dim=1).nonzero().squeeze(1)
    offsets = [offset * idm.frame_stride for offset in idm.offsets]
    divided = spread(training, batch=training.batch)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = divided.part.stream(seed, series, step)
        row = usable[own_rows(torch.randint(len(usable), (training.batch,), generator=generator), generator)]
        through_codec = draw(torch.rand, (len(row),), generator) < training.codec_share
        frames = data.window(row, offsets, through_codec).to(idm.device)
        tall = frames.flatten(1, 2)  # one image, so that a window's frames change their colours alike
        frames = colour_jitter(tall, strength=training.jitter, generator=generator).view_as(frames)
        mean, log_std = idm(frames)
        target = idm.standardised(data.target[row].to(idm.device))
        error = (mean - target).detach().abs().mean()
        return beta_nll(mean, log_std, target, training.beta).mean(), {"idm/error": error}

    idm.encoder.compute_dtype = resolve_dtype(training.dtype, idm.device)
    report = fit_module(
        series,
        idm,
        loss,
        part="idm",
        optimizer=adamw(idm, training.learning_rate, training.weight_decay),
        steps=training.steps,
        warmup=100,
        every_checkpoint=training.checkpoint_every,
        folder=folder,
        log=log,
        processes=divided,
    )
    idm.encoder.compute_dtype = torch.float32
    return report


def scale_deviations(idm: InverseDynamics, scores: Tensor) -> None:
    """Scale the deviations so that 90 % of errors ``scores [R, D]`` (in deviations) are within 1.64 of them."""
    factor = scores.abs().double().quantile(COVERED, dim=0) / WITHIN
    idm.trust.mul_(factor.clamp_min(1e-3).to(idm.trust))
