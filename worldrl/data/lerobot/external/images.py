"""Images of an external LeRobotDataset: PNG or JPEG in the rows, or frames of a video that many episodes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.error import FFmpegError, InvalidDataError
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.image_fit import Fit, fit_image
from worldrl.data.lerobot.external.folder import WHOLE, Clip
from worldrl.data.lerobot.external.times import OFF, Film

Picture = NDArray[np.uint8]
TURNS: Mapping[str, Callable[[Picture], Picture]] = {
    "as they are": lambda picture: picture,
    "turned": lambda picture: picture[::-1, ::-1],
    "flipped": lambda picture: picture[::-1],
    "mirrored": lambda picture: picture[:, ::-1],
}
DAMAGE_IS_AN_ERROR = {"err_detect": "explode", "strict": "1"}
"""Options of FFmpeg's decoders. By default they conceal damaged parts of an image."""


def _beside(entry: Any) -> str:
    """What to do about an image that lies in a file of its own; empty where none is named."""
    path = entry.get("path") if isinstance(entry, Mapping) and not entry.get("bytes") else None
    return f"it names the file {path!r}; write that file's bytes into the column" if isinstance(path, str) else ""


def stored_images(column: Sequence[Any], where: str) -> Iterator[Picture]:
    """Decode the rows ``{"bytes": ..., "path": ...}`` of an image column, RGB; ArtefactError for a damaged one."""
    for row, entry in enumerate(column):
        content = entry.get("bytes") if isinstance(entry, Mapping) else None
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
        if picture is None:
            raise ArtefactError(f"{where}: row {row} holds no readable image; {_beside(entry) or WHOLE}")
        yield np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)


def film_images(clip: Clip, times: NDArray[np.float64], where: str) -> Iterator[Picture]:
    """Decode an episode's frames out of a video, RGB: for each row the frame at ``clip.start_s`` plus its time (s).

    ArtefactError, from ``where``, for a damaged video, or a row without a frame at its time.
    """
    wanted, given = clip.start_s + times, 0
    for seeks in (True, False):  # a film of open groups of frames has errors after a seek, and none from its beginning
        try:
            with _opened(clip.file) as container:
                for picture in _in_step(container, wanted[given:], seeks):
                    yield picture
                    given += 1
        except (FFmpegError, IndexError) as reason:
            if not seeks:
                raise ArtefactError(
                    f"{where}: damaged: cannot be decoded without errors ({reason}); {WHOLE}"
                ) from reason
        if given == len(times):
            return
    raise ArtefactError(
        f"{where}: row {given} is at {wanted[given]:.3f} s of the film, which has no frame within {OFF:g} frames of it; "
        f"write timestamps on the film's grid, or {WHOLE}"
    )


def whole_film(file: Path) -> Iterator[Picture]:
    """Decode every frame of a video file, RGB; ArtefactError for one that is damaged or no video."""
    colours = VideoReformatter()
    try:
        with _opened(file) as container:
            for frame in _undamaged(container, container.streams.video[0]):
                yield np.asarray(colours.reformat(frame, format="rgb24").to_ndarray(), np.uint8)
    except (FFmpegError, IndexError, OSError) as reason:
        raise ArtefactError(
            f"{file}: cannot be decoded as a video without errors ({reason}); write it again"
        ) from reason


def read_film(file: Path, where: str) -> Film:
    """Read a film's end and rate from its index, undecoded; ArtefactError where it cannot be read."""
    try:
        with _opened(file) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.base_rate or 0)
            container.seek((stream.start_time or 0) + (stream.duration or 0), stream=stream)
            times = [packet.pts * stream.time_base for packet in container.demux(stream) if packet.pts is not None]
    except (FFmpegError, IndexError, ValueError, TypeError) as reason:
        raise ArtefactError(f"{where}: damaged: cannot be read ({reason}); {WHOLE}") from reason
    if not times or rate <= 0:
        raise ArtefactError(f"{where}: damaged: the film has no frames or no rate; {WHOLE}")
    return Film(float(max(times)), rate)


def _opened(file: Path) -> Any:
    return av.open(str(file), metadata_errors="replace")  # a title in another encoding is no damage


def _in_step(container: Any, wanted_s: NDArray[np.float64], seeks: bool) -> Iterator[Picture]:
    """Take the frame at each time, and end at a hole."""
    stream, given = container.streams.video[0], 0
    off, tick_s = OFF / float(stream.average_rate), float(stream.time_base)
    colours = VideoReformatter()  # one for all frames: to_ndarray(format=...) would make one for each
    first, last = (wanted_s - off).tolist(), (wanted_s + off).tolist()
    if seeks:  # to the key frame at or before it
        container.seek(int(wanted_s[0] / stream.time_base), stream=stream)
    for frame in _undamaged(container, stream):
        time_s = frame.pts * tick_s
        if time_s < first[given]:
            continue
        if time_s > last[given]:
            return
        yield np.asarray(colours.reformat(frame, format="rgb24").to_ndarray(), np.uint8)
        given += 1
        if given == len(wanted_s):
            return


def _undamaged(container: Any, stream: Any) -> Iterator[Any]:
    """Decode, and raise an error where a decoder would guess what a damaged part shows."""
    if stream.codec_context is None:
        raise InvalidDataError(0, "no decoder knows its codec")
    stream.codec_context.options = DAMAGE_IS_AN_ERROR
    for packet in container.demux(stream):
        for frame in packet.decode():
            if packet.is_corrupt or frame.is_corrupt or frame.pts is None:
                raise InvalidDataError(0, "a damaged frame")
            yield frame


def fitted(picture: Picture, *, turn: str, size: tuple[int, int], fit: Fit) -> Picture:
    """Turn an image ``[Y, X, 3]`` by a key of :data:`TURNS`, and bring it to rows and columns."""
    return fit_image(np.ascontiguousarray(TURNS[turn](picture)), size, fit)
