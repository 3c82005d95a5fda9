"""Frames to an mp4 file for browsers: H.264, yuv420p; the file is written as a whole or not at all."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.core.storage.atomic import write_file

CODEC = "libx264"
QUALITY = "18"
"""Constant rate factor of x264: 0 is lossless, 18 looks lossless."""


def enlarge(frames: NDArray[np.uint8], least: int) -> NDArray[np.uint8]:
    """Repeat pixels by a whole factor until the shorter side has ``least`` pixels, and pad to the even sides that yuv420p needs.

    Maps uint8 ``[T, Y, X, 3]`` to uint8 ``[T, Y', X', 3]``.
    """
    factor = max(1, -(-least // min(frames.shape[1:3])))
    large = frames.repeat(factor, axis=1).repeat(factor, axis=2)
    odd = [(0, size % 2) for size in large.shape[1:3]]
    return np.pad(large, [(0, 0), *odd, (0, 0)], mode="edge")


def encode_mp4(frames: NDArray[np.uint8], fps: float, *, least: int = 256) -> bytes:
    """Encode frames uint8 ``[T, Y, X, 3]`` (T at least 1) as an mp4 file; ``least`` as in :func:`enlarge`.

    Raises SettingError (another shape or dtype, or a rate that is not positive). Raises MissingExtraError (PyAV was
    built without x264).
    """
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise SettingError(f"frames: must be uint8 [T, Y, X, 3] with T >= 1, got {frames.dtype} {frames.shape}")
    if not fps > 0:
        raise SettingError(f"fps: must be > 0, got {fps}")
    import av

    try:
        av.Codec(CODEC, "w")
    except ValueError as error:  # av.codec.UnknownCodecError is one
        raise MissingExtraError(f"video: this PyAV has no {CODEC} encoder; run `pip install av` for a wheel") from error
    large = enlarge(frames, least)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(CODEC, rate=Fraction(fps).limit_denominator(1000), options={"crf": QUALITY})
        stream.height, stream.width = large.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in large:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def write_mp4(frames: NDArray[np.uint8], path: Path, fps: float) -> None:
    """Write a video file; arguments and errors as in :func:`encode_mp4`."""
    write_file(path, encode_mp4(frames, fps))
