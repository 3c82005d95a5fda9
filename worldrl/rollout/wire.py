"""Messages between a parent and its worker processes: a JSON header followed by raw arrays. No pickle.

Layout of one message::

    uint32 (little-endian) header length | header (UTF-8 JSON) | array 0 | array 1 | ...

The header's ``arrays`` lists ``[name, dtype, shape]`` in the order of the bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_LENGTH = struct.Struct("<I")


def encode(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Pack a JSON-ready header and named arrays into one message."""
    packed = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    listing = [[name, array.dtype.str, list(array.shape)] for name, array in packed.items()]
    head = json.dumps({**header, "arrays": listing}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *(array.tobytes() for array in packed.values())])


def decode(message: bytes) -> tuple[dict[str, Any], Arrays]:
    """Unpack :func:`encode`; the arrays are writable and own their memory."""
    (length,) = _LENGTH.unpack_from(message)
    offset = _LENGTH.size + length
    header = json.loads(message[_LENGTH.size : offset])
    arrays: Arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        count = math.prod(shape)
        arrays[name] = np.frombuffer(message, np.dtype(dtype), count, offset).reshape(shape).copy()
        offset += arrays[name].nbytes
    return header, arrays
