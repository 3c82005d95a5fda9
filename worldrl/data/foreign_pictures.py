"""Pictures of a foreign LeRobotDataset: PNG or JPEG in the rows, or frames of a video that many episodes share.

Shapes legend: ``N`` rows of an episode, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.error import FFmpegError, InvalidDataError
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.data.foreign_folder import WHOLE, Clip
from worldrl.data.foreign_times import LEAVE_OUT, OFF

Picture = NDArray[np.uint8]
TURNS: Mapping[str, Callable[[Picture], Picture]] = {
    "as they are": lambda picture: picture,
    "turned": lambda picture: picture[::-1, ::-1],
    "flipped": lambda picture: picture[::-1],
    "mirrored": lambda picture: picture[:, ::-1],
}
DAMAGE_IS_AN_ERROR = {"err_detect": "explode", "strict": "1"}
"""Options of FFmpeg's decoders; by default they guess what damaged parts of an image may have shown."""


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


def filmed_pictures(clip: Clip, times: NDArray[np.float64], fps: float, where: str) -> Iterator[Picture]:
    """Decode an episode's frames out of a video, RGB: for each row the frame at ``clip.start_s`` plus its time.

    Args:
        clip: file, and when the episode begins.
        times: of the rows (s), ascending; inside the clip.
        fps: frames per second, as the folder states them.
        where: file and feature, for the message.

    Raises:
        ArtefactError: the video cannot be read or is damaged, or a row has no frame at its time.
    """
    given = 0
    for seeks in (True, False):  # a film of open groups of frames has errors after a seek, and none from its beginning
        try:
            with av.open(str(clip.file)) as container:
                for picture in _in_step(_decoded(container, clip.start_s + times[given:], seeks), times, clip, fps, given):
                    yield picture
                    given += 1
        except (FFmpegError, IndexError) as reason:
            if not seeks:
                raise ArtefactError(f"{where}: damaged: cannot be decoded without errors ({reason}); {WHOLE}") from reason
        if given == len(times):
            return
    raise ArtefactError(
        f"{where}: has no frame at {clip.start_s + times[given]:.3f} s, within {OFF:g} / {fps:g} s of row {given}'s time; "
        f"write times on the film's grid, or {LEAVE_OUT}"
    )


def last_frame_s(file: Path, where: str) -> float:
    """Time of a film's last frame (s), read from its index and not decoded.

    Raises:
        ArtefactError: it cannot be read.
    """
    try:
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            container.seek((stream.start_time or 0) + (stream.duration or 0), stream=stream)
            return max(float(packet.pts * packet.time_base) for packet in container.demux(stream) if packet.pts is not None)
    except (FFmpegError, IndexError, ValueError, TypeError) as reason:
        raise ArtefactError(f"{where}: damaged: cannot be read ({reason}); {WHOLE}") from reason


def _decoded(container: Any, wanted_s: NDArray[np.float64], seeks: bool) -> Iterator[Any]:
    """Decode from the key frame at or before the first wanted time, or from the beginning."""
    stream = container.streams.video[0]
    stream.codec_context.options = DAMAGE_IS_AN_ERROR
    if seeks:
        container.seek(int(wanted_s[0] / stream.time_base), stream=stream)
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise InvalidDataError(0, "a damaged packet", str(container.name))
        for frame in packet.decode():
            if frame.is_corrupt:
                raise InvalidDataError(0, "a damaged frame", str(container.name))
            yield frame


def _in_step(
    frames: Iterator[Any], times: NDArray[np.float64], clip: Clip, fps: float, given: int
) -> Iterator[Picture]:
    """Take the frame at each row's time, and end at a hole."""
    for frame in frames:
        place = (frame.time - clip.start_s) * fps
        if place < times[given] * fps - OFF:
            continue
        if place > times[given] * fps + OFF:
            return
        yield frame.to_ndarray(format="rgb24")
        given += 1
        if given == len(times):
            return


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
