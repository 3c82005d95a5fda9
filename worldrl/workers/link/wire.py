"""Messages between a parent and its worker processes: a JSON header followed by raw arrays. No pickle.

Layout of one message::

    uint32 (little-endian) header length | header (UTF-8 JSON) | array 0 | array 1 | ...

The header's ``arrays`` lists ``[name, dtype, shape]`` in the order of the bytes. What arrives is checked before it is
used: numbers and bools only, sizes that fill the message exactly. Whatever is wrong with it is a :class:`WireError`.
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
"""Version of the messages between the core and a simulator worker, and of how they are framed (`workers/channel.py`); both
sides must speak the same."""

Arrays = dict[str, NDArray[Any]]
_LENGTH = struct.Struct("<I")
_KEPT_BYTES = 4096
"""Smaller arrays are copied out of a message, or the state of one step would keep its pictures alive."""
_KINDS = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
_DTYPES = {dtype.str: dtype for dtype in (np.dtype(order + kind) for order in "<>" for kind in _KINDS)}
"""What travels, by its text: numpy's own reading of a text evaluates parts of it."""
_MOST_AXES = 32
_MOST_NUMBERS = 1 << 40


class WireError(ValueError):
    """A message is not one of ours, or was cut short."""


def parts(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> list[memoryview]:
    """Pack a JSON-ready header and named arrays into the parts of one message, flat bytes; arrays lie where they lay.

    Raises:
        WireError: an array holds something other than numbers or bools.
    """
    packed = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    for name, array in packed.items():
        _require_numbers(name, array.dtype)
    # ascontiguousarray makes a scalar a row of one, so the shape is taken from what was given.
    listing = [[name, array.dtype.str, list(np.shape((arrays or {})[name]))] for name, array in packed.items()]
    head = json.dumps({**header, "arrays": listing}).encode()
    flat = [array.reshape(-1).view(np.uint8).data for array in packed.values() if array.size]
    return [memoryview(_LENGTH.pack(len(head)) + head), *flat]


def encode(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Pack a JSON-ready header and named arrays into one message.

    Raises:
        WireError: an array holds something other than numbers or bools.
    """
    return b"".join(parts(header, arrays))


def decode(message: bytes | memoryview) -> tuple[dict[str, Any], Arrays]:
    """Unpack :func:`encode`; the arrays are writable.

    Args:
        message: bytes, from which the arrays are copied, or a writable buffer of nobody else's, which large arrays keep.

    Raises:
        WireError: the message is damaged, or announces anything but numbers and bools.
    """
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
    """Return announced numbers as a view of the message's bytes from ``offset`` on.

    Args:
        name: for errors.
        dtype: numpy's text of it, as announced.
        shape: list of sizes, as announced.
        message: holds the bytes; more may follow.
        offset: where they begin.

    Raises:
        WireError: they are no numbers or bools, or the message ends inside.
    """
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


def _require_numbers(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.str not in _DTYPES:
        raise WireError(f"array {name!r}: dtype {dtype} does not travel; only numbers and bools do")
