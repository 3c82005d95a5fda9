"""Filmstrips as PNG: frames upscaled by nearest neighbour, rows aligned in time.

:func:`row_image` is what the page shows (its labels are HTML, so that they scroll, print and can be read aloud);
:func:`draw_filmstrip` is the same strip as one image with drawn labels, for slides and a README.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.report.model import Filmstrip, Frames

GAP = 2
"""Pixels between frames before upscaling."""
COMPRESSION = 6
"""Of PNG: level 9 saves 1 % more and takes thirteen times as long."""
MARGIN = 8
LINE = 22
FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_SIZE = 0.45
INK = (60, 60, 60)
PAPER = 255


def scale_for(width: int) -> int:
    """Choose the upscaling of a frame ``width`` pixels wide: ×3 up to 64, ×2 up to 128, else ×1."""
    return 3 if width <= 64 else 2 if width <= 128 else 1


def row_image(frames: Frames, steps: int) -> NDArray[np.uint8]:
    """Lay frames ``[T, Y, X, 3]`` side by side in ``steps`` cells; gaps, and cells beyond ``T``, are transparent.

    Returns uint8 RGBA ``[Y·s, steps·(X + GAP)·s, 4]`` with ``s`` from :func:`scale_for`.
    """
    height, width = frames.shape[1:3]
    image = np.zeros((height, steps, width + GAP, 4), np.uint8)
    image[:, : len(frames), :width, :3] = frames.transpose(1, 0, 2, 3)
    image[:, : len(frames), :width, 3] = 255
    scale = scale_for(width)  # nearest neighbour, nothing invented
    return image.reshape(height, steps * (width + GAP), 4).repeat(scale, axis=0).repeat(scale, axis=1)


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode RGB ``[Y, X, 3]`` or RGBA ``[Y, X, 4]`` uint8 as PNG; the same image gives the same bytes."""
    order = cv2.COLOR_RGBA2BGRA if image.shape[-1] == 4 else cv2.COLOR_RGB2BGR
    encoded, data = cv2.imencode(".png", cv2.cvtColor(image, order), [cv2.IMWRITE_PNG_COMPRESSION, COMPRESSION])
    if not encoded:
        raise ArtefactError(f"png: the image could not be encoded, got {image.dtype} {list(image.shape)}")
    return data.tobytes()


def decode_png(data: bytes, name: str) -> NDArray[np.uint8]:
    """Decode a PNG to RGB uint8 ``[Y, X, 3]``.

    Raises ArtefactError: if ``data`` (called ``name`` in the message) is no readable image.
    """
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if image is None:
        raise ArtefactError(f"{name}: not a readable PNG; run the job again to write it anew")
    return np.ascontiguousarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def draw_filmstrip(strip: Filmstrip) -> NDArray[np.uint8]:
    """Draw a strip as one image, uint8 RGB ``[height, width, 3]`` on white: title, each row under its name, time labels."""
    rows = {name: _on_paper(row_image(frames, len(strip.labels))) for name, frames in strip.rows.items()}
    row_height, row_width = next(iter(rows.values())).shape[:2]
    height = 2 * MARGIN + LINE + (LINE + row_height) * len(rows) + LINE
    image = np.full((height, row_width + 2 * MARGIN, 3), PAPER, np.uint8)
    _write(image, strip.title, MARGIN, MARGIN + LINE - 8)
    cell = row_width // len(strip.labels)
    for index, label in enumerate(strip.labels):
        _write(image, label, MARGIN + index * cell, height - MARGIN - 8)
    for index, (name, row) in enumerate(rows.items()):
        top = MARGIN + LINE + index * (LINE + row_height)
        _write(image, name, MARGIN, top + LINE - 7)
        image[top + LINE : top + LINE + row_height, MARGIN : MARGIN + row_width] = row
    return image


def _on_paper(rgba: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.where(rgba[..., 3:] > 0, rgba[..., :3], np.uint8(PAPER))


def _write(image: NDArray[np.uint8], text: str, x: int, y: int) -> None:
    # Hershey fonts hold ASCII only; the page itself shows the text unchanged.
    plain = text.encode("ascii", "replace").decode()
    cv2.putText(image, plain, (x, y), FONT, FONT_SIZE, INK, 1, cv2.LINE_AA)
