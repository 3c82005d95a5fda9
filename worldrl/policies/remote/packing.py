"""MessagePack with numpy arrays, as OpenPI's and RoboTwin's clients send them: numbers and bools only, never a pickle.

An array is a map of its bytes, in OpenPI's form (``__ndarray__``) or msgpack-numpy's (``nd``). What comes from the other
side is checked before use; every fault is a :class:`FrameError`, whose text has a bounded length.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.workers.link.wire import WireError, view

EXTRA = "serve"
MAX_TEXT = 256  # characters of a name or an identifier
MAX_ITEMS = 1 << 17  # values in a frame's lists and maps; arrays are sent as bytes, so a frame has a few dozen
MAX_SIDE = 4096  # pixels
LONGEST = 300  # characters of an error's text


class FrameError(WorldrlError, ValueError):
    """A frame or an observation is not one of the protocol; the text is sent back to the client.

    ``frame`` is its readable part, whose identifiers the answer repeats.
    """

    def __init__(self, text: str, frame: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.frame = frame or {}


def unpack(message: bytes) -> dict[str, Any]:
    """Unpack one frame, a map; FrameError for anything else, and for arrays of other things than numbers."""
    msgpack, left = require("msgpack", extra=EXTRA), MAX_ITEMS

    def count(values: Any) -> Any:
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise FrameError(f"a frame holds at most {MAX_ITEMS} values; arrays travel as bytes")
        return numbers(values) if isinstance(values, dict) else values

    limits = {"max_array_len": MAX_ITEMS, "max_map_len": MAX_ITEMS}
    try:
        frame = msgpack.unpackb(message, raw=False, object_hook=count, list_hook=count, **limits)
    except FrameError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise FrameError(f"not a MessagePack frame: {reprlib.repr(str(error))}") from error
    if not isinstance(frame, dict):
        raise FrameError(f"a frame is a map, this is a {type(frame).__name__}")
    return frame


def pack(values: Mapping[str, Any]) -> bytes:
    """Pack a map; arrays take OpenPI's form."""
    return require("msgpack", extra=EXTRA).packb(values, default=_packed, use_bin_type=True)


def _packed(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__} does not travel; only numbers and bools do")
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": list(value.shape)}


def numbers(table: dict[Any, Any]) -> Any:
    """Turn a map of an array or a scalar into numpy; other maps stay.

    Raises FrameError (it announces other values than numbers and bools, or its bytes do not fill it).
    """
    if b"__npgeneric__" in table:
        return _scalar(table.get(b"data"))
    if b"__ndarray__" in table:
        return _array(table.get(b"dtype"), table.get(b"shape", []), table.get(b"data"))
    if b"nd" not in table:
        return table
    text, kind, data = (table.get(name) for name in (b"type", b"kind", b"data"))
    if not isinstance(table[b"nd"], bool) or (isinstance(kind, bytes | str) and kind):
        raise FrameError("array: only numbers and bools are taken, in msgpack-numpy's form")
    dtype = text.decode(errors="replace") if isinstance(text, bytes) else text
    return _array(dtype, table.get(b"shape", []) if table[b"nd"] else [], data)


def _array(dtype: object, shape: object, data: object) -> NDArray[Any]:
    if not isinstance(data, bytes):
        raise FrameError("array: only numbers and bools are taken, as bytes")
    try:
        found = view("array", dtype, shape, data)
    except WireError as error:
        raise FrameError(str(error)) from error
    if found.nbytes != len(data):
        raise FrameError(f"array: {found.nbytes} bytes are announced, {len(data)} come")
    return found


def _scalar(value: object) -> bool | int | float:
    if not isinstance(value, bool | int | float):
        raise FrameError("scalar: only numbers and bools are taken")
    return value


def map_of(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A map within another, empty where it is missing or null; FrameError for anything else."""
    found = table.get(name)
    if found is not None and not isinstance(found, dict):
        raise wrong(name, "a map", found)
    return found or {}


def text_of(table: Mapping[str, Any], name: str, missing: str | None = None, most: int = MAX_TEXT) -> str:
    """A text of at most ``most`` characters, ``missing`` where it is missing or null; else FrameError."""
    found = missing if table.get(name) is None else table[name]
    if not isinstance(found, str):
        raise wrong(name, "text", found)
    if len(found) > most:
        raise FrameError(f"{name}: at most {most} characters, got {len(found)}; shorten it")
    return found


def whole_of(table: Mapping[str, Any], name: str) -> int:
    """A whole number, 0 where it is missing or null; FrameError for anything else."""
    found = 0 if table.get(name) is None else table[name]
    if isinstance(found, np.ndarray) and found.shape == () and found.dtype.kind in "ui":
        return int(found)  # a numpy scalar of the client's
    if not isinstance(found, int) or isinstance(found, bool):
        raise wrong(name, "a whole number", found)
    return found


def floats_of(name: str, value: object) -> NDArray[np.float32]:
    """A row of finite numbers, float32 ``[N]``, of an array, a list or one number; else FrameError."""
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(value, np.float32).ravel()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{name}: must be numbers, it is {type(value).__name__}") from error
    if not np.isfinite(found).all():
        raise FrameError(f"{name}: must be finite")
    return found


def image_of(name: str, image: object) -> NDArray[np.uint8]:
    """An image uint8 ``[Y, X, 3]``; FrameError for anything else."""
    if isinstance(image, np.ndarray):
        inside = image.ndim == 3 and all(1 <= side <= MAX_SIDE for side in image.shape[:2])
        if image.dtype == np.uint8 and inside and image.shape[2] == 3:
            return image
    raise FrameError(f"{name}: must be uint8 [Y, X, 3] of 1 to {MAX_SIDE} pixels per side, it is {shown(image)}")


def shown(value: object) -> str:
    """Type of a value of a frame, for a message: that and the shape of an array."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def one_line(what: object) -> str:
    """One line of bounded length, without control characters that the other side chose."""
    text = "".join(character if character.isprintable() else " " for character in str(what)[: 2 * LONGEST])
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def wrong(name: str, wanted: str, found: object) -> FrameError:
    """Make the error of a value of another type."""
    kind = "missing" if found is None else type(found).__name__
    return FrameError(f"{name}: must be {wanted}, it is {kind}")
