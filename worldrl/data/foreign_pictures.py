"""Pictures of a foreign LeRobotDataset: PNG or JPEG in the rows, or frames of a video that many episodes share.

Shapes legend: ``N`` rows of an episode, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import av
import cv2
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.data.foreign_folder import WHOLE, Clip

Picture = NDArray[np.uint8]
TURNS: Mapping[str, Callable[[Picture], Picture]] = {
    "as they are": lambda picture: picture,
    "turned": lambda picture: picture[::-1, ::-1],
    "flipped": lambda picture: picture[::-1],
    "mirrored": lambda picture: picture[:, ::-1],
}
OFF = 0.25
"""Largest distance of a video frame from a row's time, in frames; farther is no frame of that row."""


def stored_pictures(column: Sequence[Any], where: str) -> Iterator[Picture]:
    """Decode the rows of an image column, RGB.

    Args:
        column: ``{"bytes": ..., "path": ...}`` per row, as Hugging Face datasets store pictures.
        where: file and feature, for the message.

    Raises:
        ArtefactError: a row without a picture, or with a damaged one.
    """
    for row, entry in enumerate(column):
        content = entry.get("bytes") if isinstance(entry, Mapping) else None
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
        if picture is None:
            raise ArtefactError(f"{where}: row {row} holds no readable image; {WHOLE}")
        yield np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)


def filmed_pictures(clip: Clip, rows: int, fps: float, where: str) -> Iterator[Picture]:
    """Decode an episode's frames out of a video, RGB; no frame of the episodes before and after it.

    Args:
        clip: file, and when the episode begins.
        rows: how many frames.
        fps: frames per second, as the folder states them.
        where: file and feature, for the message.

    Raises:
        ArtefactError: the video cannot be read, or a row has no frame at its time.
    """
    try:
        with av.open(str(clip.file)) as container:
            frames = _decoded(container, clip.start_s)
            yield from islice(_in_step(frames, clip.start_s, fps, rows, where), rows)
    except (FFmpegError, IndexError) as reason:
        raise ArtefactError(f"{where}: cannot be decoded ({reason}); {WHOLE}") from reason


def _decoded(container: Any, start_s: float) -> Iterator[Any]:
    stream = container.streams.video[0]
    container.seek(int(start_s / stream.time_base), stream=stream)  # to the key frame at or before it
    return container.decode(stream)


def _in_step(frames: Iterator[Any], start_s: float, fps: float, rows: int, where: str) -> Iterator[Picture]:
    """Take the frames at rows 0, 1, ... and refuse a hole."""
    wanted = 0
    for frame in frames:
        place = (frame.time - start_s) * fps
        if place < wanted - OFF:
            continue
        if place > wanted + OFF:
            break
        yield frame.to_ndarray(format="rgb24")
        wanted += 1
    if wanted < rows:
        raise ArtefactError(
            f"{where}: has no frame at {start_s + wanted / fps:.3f} s, where row {wanted} should be; {WHOLE}"
        )


def fitted(picture: Picture, *, turn: str, size: tuple[int, int]) -> Picture:
    """Turn a picture, and resize it by the mean over pixels.

    Args:
        picture: ``[Y, X, 3]``.
        turn: a key of :data:`TURNS`.
        size: rows and columns.
    """
    turned = np.ascontiguousarray(TURNS[turn](picture))
    if turned.shape[:2] == size:
        return turned
    return np.asarray(cv2.resize(turned, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
