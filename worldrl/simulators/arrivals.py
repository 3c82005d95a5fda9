"""Workers that connect to the driver from other machines: one listening socket, and a token for each worker.

A connection says nothing before its token was compared; a token is valid once. The socket listens on one address of
this machine only, which its network can reach; the messages are not encrypted.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.simulators.process import Reply
from worldrl.workers.link.channel import Channel
from worldrl.workers.link.node import LENGTH, TOKEN_BYTES
from worldrl.workers.link.wire import Arrays

HEAD_BYTES = 1 << 16
STRANGER_S = 10.0
"""Longest wait for each part of a connection's first bytes (s)."""
STRANGERS = 64
"""Connections that may be without a token at the same time."""


class AwaitedChannel:
    """A channel to a worker that has yet to connect; what is sent before is kept, and its paths are its node's.

    The first message that it receives is ``connected``.
    """

    def __init__(self) -> None:
        self._ours, self._bell = socket.socketpair()
        self._lock = threading.Lock()
        self._kept: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = []
        self._arrived: socket.socket | None = None
        self._channel: Channel | None = None
        self.head: Mapping[str, Any] = {}

    @property
    def connected(self) -> bool:
        """Whether the worker has arrived."""
        return self._arrived is not None

    def arrive(self, end: socket.socket, head: Mapping[str, Any]) -> None:
        """Take the worker's connection; called in another thread."""
        with self._lock:
            self._arrived, self.head = end, head
            self._bell.send(b"!")

    def abandon(self) -> None:
        """The worker is gone: what has arrived can still be read, and then the end."""
        with self._lock:
            self._bell.close()
            if self._arrived is not None:
                try:
                    self._arrived.shutdown(socket.SHUT_RD)
                except OSError:
                    return  # closed already

    def fileno(self) -> int:
        """Descriptor that becomes readable with the connection, and then with each message."""
        return (self._channel or self._ours).fileno()

    def send(self, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """As of :class:`~worldrl.workers.link.channel.Channel`."""
        if self._channel is None:
            self._kept.append((header, arrays))
        else:
            self._channel.send(header, arrays)

    def receive(self) -> Reply:
        """As of :class:`~worldrl.workers.link.channel.Channel`."""
        if self._channel is not None:
            return self._channel.receive()
        if not self._ours.recv(1) or self._arrived is None:
            raise EOFError("the worker did not start")
        self._channel = Channel(self._arrived)
        for header, arrays in self._kept:
            self._channel.send(_with_paths(dict(header), self.head["paths"]), arrays)
        self._kept.clear()
        return {"kind": "connected"}, {}

    def poll(self, timeout_s: float) -> bool:
        """As of :class:`~worldrl.workers.link.channel.Channel`."""
        return self._channel.poll(timeout_s) if self._channel else _readable(self._ours, timeout_s)

    def close(self) -> None:
        """Close every end."""
        with self._lock:
            for end in (self._ours, self._bell, self._arrived):
                if end is not None:
                    end.close()


def _readable(end: socket.socket, timeout_s: float) -> bool:
    end.settimeout(max(timeout_s, 1e-6))
    try:
        end.recv(1, socket.MSG_PEEK)
        return True
    except TimeoutError:
        return False
    finally:
        end.settimeout(None)


def _with_paths(value: Any, paths: Mapping[str, str]) -> Any:
    """JSON values with each text that is a known path replaced by the node's own."""
    if isinstance(value, str):
        return paths.get(value, value)
    if isinstance(value, dict):
        return {name: _with_paths(item, paths) for name, item in value.items()}
    return [_with_paths(item, paths) for item in value] if isinstance(value, list) else value


class Arrivals:
    """Listens on one ``address`` of this machine, at a free port, in a thread of its own."""

    def __init__(self, address: str) -> None:
        try:
            self._listener = socket.create_server((address, 0), backlog=128)
        except OSError as error:
            raise WorkerEnvironmentError(
                f"engine=ray: cannot listen on {address} ({error.strerror}); run on a node of the cluster, or start Ray with "
                "`ray start --node-ip-address=ADDRESS` of this machine"
            ) from error
        self.host, self.port = self._listener.getsockname()[:2]
        self._expected: dict[bytes, AwaitedChannel] = {}
        self._room = threading.Semaphore(STRANGERS)
        threading.Thread(target=self._listen, name="worldrl-arrivals", daemon=True).start()

    def expect(self) -> tuple[str, AwaitedChannel]:
        """Make a token, and the channel of the one worker that presents it."""
        token, channel = secrets.token_bytes(TOKEN_BYTES), AwaitedChannel()
        self._expected[hashlib.sha256(token).digest()] = channel
        return token.hex(), channel

    def forget(self, token: str) -> None:
        """No worker will come with this token."""
        self._expected.pop(hashlib.sha256(bytes.fromhex(token)).digest(), None)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _listen(self) -> None:
        while True:
            self._room.acquire()
            try:
                end, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._admit, args=(end,), daemon=True).start()

    def _admit(self, end: socket.socket) -> None:
        """Hand a connection over where its token is known; close any other without a word."""
        try:
            end.settimeout(STRANGER_S)
            # By digest: the time of the search says nothing about the token.
            channel = self._expected.pop(hashlib.sha256(_exactly(end, TOKEN_BYTES)).digest(), None)
            if channel is None:
                return end.close()
            (length,) = struct.unpack(LENGTH, _exactly(end, struct.calcsize(LENGTH)))
            head = json.loads(_exactly(end, min(length, HEAD_BYTES)))
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            channel.arrive(end, head)
        except (OSError, EOFError, ValueError):
            end.close()
        finally:
            self._room.release()


def require_listener(address: str, mend: str) -> None:
    """WorkerEnvironmentError where nobody listens at ``HOST:PORT``; Ray itself would try for five minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), STRANGER_S).close()
    except (OSError, ValueError) as error:
        raise WorkerEnvironmentError(f"ray.address={address}: no Ray cluster answers; {mend}") from error


def _exactly(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = end.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found
