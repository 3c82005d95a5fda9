"""One end of a worker's socket pair: messages of ``link/wire.py``, each behind its length, without spare copies.

::

    uint64 (little-endian) length of the message | message

An image is copied once into the kernel and once out of it. The sender passes the arrays in place; the receiver reads
into fresh memory of the right size, and the large arrays of the answer are views of it.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.wire import Arrays, WireError, decode, parts

_SIZE = struct.Struct("<Q")
BUFFER_BYTES = 1 << 20
"""Requested kernel buffer (the kernel may grant less). An answer with two images of 256 pixels is 393 KB; a sender that
fills a smaller buffer sleeps and wakes several times per answer.
"""
_PARTS = 64  # Parts per system call, which takes 1024 at most; a network has more tensors
LARGEST_BYTES = 1 << 36  # A longer message length means a damaged stream


class Channel:
    """Sends and receives messages through ``end``, which it closes."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

    def fileno(self) -> int:
        """Descriptor, for ``select`` and ``multiprocessing.connection.wait``."""
        return self._end.fileno()

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Send one message; WireError (nothing was sent) for other than numbers, OSError where nobody listens."""
        body = parts(header, arrays)
        pending = [memoryview(_SIZE.pack(sum(part.nbytes for part in body))), *body]
        while pending:
            sent = self._end.sendmsg(pending[:_PARTS])
            while pending and sent >= pending[0].nbytes:
                sent -= pending.pop(0).nbytes
            if pending:
                pending[0] = pending[0][sent:]

    def receive(self) -> tuple[dict[str, Any], Arrays]:
        """Wait for one message; EOFError where the other end is closed, WireError, OSError for a broken one."""
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if size > LARGEST_BYTES:
            raise WireError(f"a message of {size} bytes is announced")
        return decode(self._read(size))

    def _read(self, size: int) -> memoryview:
        # numpy's memory, because a bytearray would be written twice: with zeros first.
        view = np.empty(size, np.uint8).data
        place = 0
        while place < size:
            count = self._end.recv_into(view[place:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise EOFError("the other end is closed")
            place += count
        return view

    def poll(self, timeout_s: float) -> bool:
        """Whether something can be read, or the other end is closed, within this time (s)."""
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        return bool(poller.poll(1000 * timeout_s))

    def close(self) -> None:
        """Close this end."""
        self._end.close()
