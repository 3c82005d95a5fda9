"""Two videos of one length beside each other: as a film, and as a filmstrip."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldrl.core.storage.atomic import write_file
from worldrl.evaluation.report.filmstrip import draw_filmstrip, encode_png
from worldrl.evaluation.report.model import Filmstrip
from worldrl.evaluation.world_model.film import encode_mp4

FRAMES_PER_STRIP = 12


def write_pair(
    folder: Path,
    name: str,
    title: str,
    real: NDArray[np.uint8],
    imagined: NDArray[np.uint8],
    *,
    stride: int,
    fps: float,
    first: int = 0,
    second: str = "imagined",
) -> None:
    """Write ``videos/NAME.mp4`` and ``filmstrips/NAME.png`` of two clips uint8 ``[T, Y, X, 3]``.

    ``stride`` control steps lie between frames; ``first`` is the step of frame 0, ``second`` the name of the second
    clip.
    """
    write_file(folder / "videos" / f"{name}.mp4", pair_film(real, imagined, fps))
    strip = pair_strip(title, "", real, imagined, stride=stride, first=first, second=second)
    write_file(folder / "filmstrips" / f"{name}.png", encode_png(draw_filmstrip(strip)))


def pair_film(real: NDArray[np.uint8], imagined: NDArray[np.uint8], fps: float) -> bytes:
    """Encode two clips ``[T, Y, X, 3]`` beside each other, the real one on the left."""
    return encode_mp4(np.concatenate([real, imagined], axis=2), fps)


def pair_strip(
    title: str,
    caption: str,
    real: NDArray[np.uint8],
    imagined: NDArray[np.uint8],
    *,
    stride: int,
    first: int,
    second: str = "imagined",
) -> Filmstrip:
    """Lay about twelve frames of each clip above each other; arguments as of :func:`write_pair`."""
    every = max(1, len(real) // FRAMES_PER_STRIP)
    labels = [f"step {first + i * stride}" for i in range(0, len(real), every)]
    return Filmstrip(title, caption, {"real": real[::every], second: imagined[::every]}, labels)
