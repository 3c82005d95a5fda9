"""Training data of the position probe: frames with known sights, and their augmentation.

Shapes legend: ``N`` frames, ``P`` points (of all tasks), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.observation import IMAGE
from worldrl.nn.vision import shift
from worldrl.rollout.real.execution import TrueRun
from worldrl.rollout.real.scenes import Views

CENTIMETRES = 100.0
FALLEN = -0.05
"""Height (m) below which an object has fallen off the table, out of the image."""


@dataclass(frozen=True)
class ProbeFrames:
    """Frames with known sights."""

    tasks: tuple[str, ...]  # names, in the order of their numbers; ``names`` of the points.
    names: tuple[str, ...]
    frame: NDArray[np.uint8]  # uint8 ``[N, Y, X, 3]``.
    task: NDArray[np.int64]  # int64 ``[N]``, number of each frame's task.
    # float32 ``[N, P, 3]``; NaN where a point is not in the scene, fell off the table, or a moving camera misses it.
    sight: NDArray[np.float32]
    half_width: float  # half the image's width at the points' mean depth (m).

    @classmethod
    def of(cls, views: Sequence[Views]) -> ProbeFrames:
        """Join views of several tasks."""
        tasks = tuple(sorted({view.task for view in views}))
        names = tuple(dict.fromkeys(name for view in views for name in view.names))
        point = [spread(view, names) for view in views]
        sight = [view.camera.project(places) for view, places in zip(views, point, strict=True)]
        depth = np.concatenate([view.camera.depth(places).ravel() for view, places in zip(views, point, strict=True)])
        numbers = np.array([tasks.index(view.task) for view in views]).repeat([len(view.frame) for view in views])
        frame = np.concatenate([view.frame for view in views])
        found = np.concatenate(sight).astype(np.float32)
        shown = np.isfinite(found[..., 0]).ravel()
        half_width = float(depth[shown].mean()) * views[0].camera.half_width
        return cls(tasks, names, frame, numbers, found, half_width)


def spread(seen: TrueRun | Views, names: Sequence[str]) -> NDArray[np.float32]:
    """Points of a run or of views under all ``names``, ``[N, P, 3]`` (m); NaN for missing and fallen ones."""
    full = np.full((len(seen.point), len(names), 3), np.nan, np.float32)
    full[:, [names.index(name) for name in seen.names]] = seen.point
    full[full[..., 2] < FALLEN] = np.nan
    return full


def position_errors(
    sight: NDArray[np.float32], true: NDArray[np.float32], run: TrueRun
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors of sights ``[N, P, 3]`` against true positions ``[N, P, 3]`` (m), seen by the main camera of a run.

    Returns the distance in space and across the line of sight, ``[N, P]`` in centimetres; NaN where there is no
    point.
    """
    camera = run.cameras[IMAGE]
    error = camera.unproject(sight) - true
    across = camera.across(error, true)
    whole, part = (CENTIMETRES * np.linalg.norm(vector, axis=-1) for vector in (error, across))
    return whole, part


def shifted(frame: Tensor, sight: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shift images uint8 ``[N, Y, X, 3]`` and their sights ``[N, P, 3]`` by whole pixels, up to a fraction of the image's width.

    Draws two integers per row from the CPU stream.
    """
    rows, height, width = frame.shape[:3]
    most = int(fraction * width)
    offset = torch.randint(-most, most + 1, (rows, 2), generator=generator).to(frame.device)
    # Image coordinates span 2 from edge to edge; an image that starts lower shows all points higher.
    moved = torch.stack([offset[:, 1] * 2 / width, offset[:, 0] * 2 / height, torch.zeros_like(offset[:, 0])], dim=1)
    return shift(frame, offset), sight - moved[:, None]


def softened(frame: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Blur images uint8 ``[N, Y, X, 3]``: the mean over 3×3 pixels gets a random share up to ``most`` in each image.

    Draws one number per row from the CPU stream.
    """
    share = (most * torch.rand(len(frame), generator=generator)).to(frame.device)[:, None, None, None]
    sharp = frame.float()
    # Repeated borders keep the edges from darkening.
    padded = F.pad(sharp.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate")
    blurred = F.avg_pool2d(padded, 3, stride=1).permute(0, 2, 3, 1)
    return torch.lerp(sharp, blurred, share).round().to(torch.uint8)
