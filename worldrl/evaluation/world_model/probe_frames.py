"""What the position probe learns from: frames with known sights, and what is done to them in training.

Shapes legend: ``N`` frames, ``P`` points (all that any task has), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worldrl.nn.vision import shift
from worldrl.rollout.real.execution import TrueRun
from worldrl.rollout.real.scenes import Views

CENTIMETRES = 100.0
FALLEN = -0.05
"""Height (m) below which an object has fallen off the table, out of the picture."""


@dataclass(frozen=True)
class ProbeFrames:
    """Frames with known sights.

    Attributes:
        tasks: names, in the order of their numbers.
        names: of the points.
        frame: uint8 ``[N, Y, X, 3]``.
        task: int64 ``[N]``, number of each frame's task.
        sight: float32 ``[N, P, 3]``; NaN where a point is not in the scene or fell off the table.
        half_width: half the picture's width at the points' mean depth (m).
    """

    tasks: tuple[str, ...]
    names: tuple[str, ...]
    frame: NDArray[np.uint8]
    task: NDArray[np.int64]
    sight: NDArray[np.float32]
    half_width: float

    @classmethod
    def of(cls, views: Sequence[Views]) -> ProbeFrames:
        """Put views of several tasks together."""
        tasks = tuple(sorted({view.task for view in views}))
        names = tuple(dict.fromkeys(name for view in views for name in view.names))
        point = [spread(view, names) for view in views]
        sight = [view.camera.project(places) for view, places in zip(views, point, strict=True)]
        depth = np.concatenate([view.camera.depth(places) for view, places in zip(views, point, strict=True)])
        numbers = np.array([tasks.index(view.task) for view in views]).repeat([len(view.frame) for view in views])
        frame = np.concatenate([view.frame for view in views])
        half_width = float(np.nanmean(depth)) * views[0].camera.half_width
        return cls(tasks, names, frame, numbers, np.concatenate(sight).astype(np.float32), half_width)


def spread(seen: TrueRun | Views, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the points of a run or of views under all ``names``, ``[N, P, 3]`` (m); NaN for those it lacks or that fell off."""
    full = np.full((len(seen.point), len(names), 3), np.nan, np.float32)
    full[:, [names.index(name) for name in seen.names]] = seen.point
    full[full[..., 2] < FALLEN] = np.nan
    return full


def position_errors(
    sight: NDArray[np.float32], true: NDArray[np.float32], run: TrueRun
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far sights are off.

    Args:
        sight: read, ``[N, P, 3]``.
        true: positions in the world, ``[N, P, 3]`` (m); NaN where there is none.
        run: whose camera took the pictures.

    Returns:
        ``[N, P]`` in centimetres, NaN where there is no point: the distance in space, and across the line of sight.
    """
    error = run.camera.unproject(sight) - true
    across = run.camera.across(error, true)
    whole, part = (CENTIMETRES * np.linalg.norm(vector, axis=-1) for vector in (error, across))
    return whole, part


def shifted(frame: Tensor, sight: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shift pictures by whole pixels, and their sights with them.

    Args:
        frame: uint8 ``[N, Y, X, 3]``.
        sight: ``[N, P, 3]``.
        fraction: largest shift, of the picture's width.
        generator: CPU stream; two integers per row are drawn.
    """
    rows, height, width = frame.shape[:3]
    most = int(fraction * width)
    offset = torch.randint(-most, most + 1, (rows, 2), generator=generator).to(frame.device)
    # A picture that begins further down shows everything further up; it spans 2 from edge to edge.
    moved = torch.stack([offset[:, 1] * 2 / width, offset[:, 0] * 2 / height, torch.zeros_like(offset[:, 0])], dim=1)
    return shift(frame, offset), sight - moved[:, None]


def softened(frame: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Blur pictures a little, each by its own amount, as imagined ones are.

    Args:
        frame: uint8 ``[N, Y, X, 3]``.
        most: largest share, in [0, 1], that the mean over 3×3 pixels takes of a picture.
        generator: CPU stream; one number per row is drawn.
    """
    share = (most * torch.rand(len(frame), generator=generator)).to(frame.device)[:, None, None, None]
    sharp = frame.float()
    # Repeated borders, so that no edge darkens.
    padded = F.pad(sharp.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate")
    blurred = F.avg_pool2d(padded, 3, stride=1).permute(0, 2, 3, 1)
    return torch.lerp(sharp, blurred, share).round().to(torch.uint8)
