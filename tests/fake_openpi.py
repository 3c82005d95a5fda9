"""OpenPI's protocol written out once more for tests: a client as ``openpi-client`` 0.1.2 is, and a server that misbehaves."""

import threading
from contextlib import contextmanager

import msgpack
import numpy as np
from websockets.sync.client import connect
from websockets.sync.server import serve

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WAIT_S = 60  # no test waits longer for an answer


def packed(value):
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}


def unpacked(table):
    if b"__ndarray__" in table:
        return np.ndarray(buffer=table[b"data"], dtype=np.dtype(table[b"dtype"]), shape=table[b"shape"])
    return table


def pack(values):
    return msgpack.packb(values, default=packed)


def unpack(message):
    return msgpack.unpackb(message, object_hook=unpacked)


class Client:
    """What a script of OpenPI's does."""

    def __init__(self, url, **headers):
        opening = connect(url, compression=None, max_size=None, additional_headers=headers, open_timeout=WAIT_S)
        self.socket = opening.__enter__()
        self.metadata = unpack(self.socket.recv(timeout=WAIT_S))

    def infer(self, observation):
        self.socket.send(pack(observation))
        answer = self.socket.recv(timeout=WAIT_S)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return unpack(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close_socket()


@contextmanager
def running(server):
    """Run a server in a thread; yields its address."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        assert not thread.is_alive()


class FakePolicy:
    """A server of OpenPI's kind: ``answer`` maps the number of a request and its observation to what is sent.

    An answer of None drops the connection; an Event is waited for, and then the connection is dropped.
    """

    def __init__(self, answer, metadata=None):
        self.answer, self.metadata, self.seen, self.connections = answer, {} if metadata is None else metadata, [], 0

    def handle(self, connection):
        self.connections += 1
        metadata = self.metadata(self.connections) if callable(self.metadata) else self.metadata
        connection.send(metadata if isinstance(metadata, bytes | str) else pack(metadata))
        try:
            for message in connection:
                self.seen.append(unpack(message))
                reply = self.answer(len(self.seen), self.seen[-1])
                if isinstance(reply, threading.Event):
                    reply.wait(WAIT_S)
                    reply = None
                if reply is None:
                    connection.close_socket()
                    return
                connection.send(reply if isinstance(reply, bytes | str) else pack(reply))
        except Exception:
            connection.close_socket()

    @contextmanager
    def listening(self):
        with running(serve(self.handle, "127.0.0.1", 0, compression=None)) as url:
            yield url


def still(number, observation):
    """Five actions of LIBERO's robot."""
    return {"actions": np.zeros((5, 7)), "server_timing": {"infer_ms": 1.0}}
