"""Messages between a parent and its worker processes: a JSON header followed by raw arrays. No pickle.

Layout of one message::

    uint32 (little-endian) header length | header (UTF-8 JSON) | array 0 | array 1 | ...

The header's ``arrays`` lists ``[name, dtype, shape]`` in the order of the bytes. A received message is checked before
use: numbers and bools only, sizes that fill the message exactly. Every fault is a :class:`WireError`.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROTOCOL = 3
"""Version of the messages between the core and a worker and of their framing (`link/channel.py`), the same on both
sides."""

Arrays = dict[str, NDArray[Any]]
_LENGTH = struct.Struct("<I")
_KEPT_BYTES = 4096  # Smaller arrays are copied out of a message; a view would keep its images in memory
_KINDS = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
_DTYPES = {dtype.str: dtype for dtype in (np.dtype(order + kind) for order in "<>" for kind in _KINDS)}
"""Allowed types by their text: numpy's own parser evaluates parts of it."""
_MOST_AXES = 32
_MOST_NUMBERS = 1 << 40


class WireError(ValueError):
    """A message is malformed or cut short."""


def parts(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> list[memoryview]:
    """Pack a header and arrays into flat bytes without a copy; WireError for other things than numbers and bools."""
    packed = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    for name, array in packed.items():
        if array.dtype.str not in _DTYPES:
            raise WireError(f"array {name!r}: dtype {array.dtype} does not travel; only numbers and bools do")
    # ascontiguousarray makes a scalar a row of one, so the shape is taken from what was given.
    listing = [[name, array.dtype.str, list(np.shape((arrays or {})[name]))] for name, array in packed.items()]
    head = json.dumps({**header, "arrays": listing}).encode()
    flat = [array.reshape(-1).view(np.uint8).data for array in packed.values() if array.size]
    return [memoryview(_LENGTH.pack(len(head)) + head), *flat]


def decode(message: bytes | memoryview) -> tuple[dict[str, Any], Arrays]:
    """Unpack :func:`parts` joined to one message; WireError for a damaged one. Arrays are copies, or views of a writable one."""
    try:
        (length,) = _LENGTH.unpack_from(message)
        offset = _LENGTH.size + length
        header = json.loads(bytes(message[_LENGTH.size : offset]))
        listing = [(name, dtype, shape) for name, dtype, shape in header.pop("arrays")]
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"not a message of ours: {error}") from error
    arrays: Arrays = {}
    for name, dtype, shape in listing:
        if not isinstance(name, str) or name in arrays:
            raise WireError(f"array {reprlib.repr(name)}: each needs a name of its own")
        array = view(f"array {reprlib.repr(name)}", dtype, shape, message, offset)
        kept = array.flags.writeable and array.flags.aligned and array.nbytes >= _KEPT_BYTES
        arrays[name] = array if kept else array.copy()
        offset += array.nbytes
    if offset != len(message):
        raise WireError(f"{len(message) - offset} bytes follow the last array")
    return header, arrays


def view(name: str, dtype: object, shape: object, message: bytes | memoryview, offset: int = 0) -> NDArray[Any]:
    """Numbers as a view of the bytes from ``offset``; WireError for other types or a cut message."""
    kind = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise WireError(f"{name}: dtype {reprlib.repr(dtype)} does not travel; only numbers and bools do")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise WireError(f"{name}: shape must hold whole numbers >= 0, got {reprlib.repr(shape)}")
    # Sizes beside a 0 count too: numpy takes no array of 0 x 2^62 x 2^62.
    if len(shape) > _MOST_AXES or math.prod(size or 1 for size in shape) > _MOST_NUMBERS:
        raise WireError(f"{name}: the shape {reprlib.repr(shape)} is too large")
    if offset + math.prod(shape) * kind.itemsize > len(message):
        raise WireError(f"{name}: the message ends inside it")
    return np.ndarray(shape, kind, message, offset)
