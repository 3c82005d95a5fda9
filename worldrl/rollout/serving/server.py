"""A websocket server that survives its clients: one thread for each, one conversation, one decision at a time.

What a conversation says is its own (:class:`Conversation`). Here are the door and its limits: a token, no web pages, the
size of a message, the time of a handshake and of a message, the number of clients. ``/healthz`` answers ``OK``.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.policies.remote.packing import EXTRA, FrameError, one_line

HEALTH = "/healthz"
GOODBYE_S = 0.3
"""Time for clients to confirm that the server closes (s); after it their connections are cut."""
CLOSE_S = 0.8
"""Longest time of closing (s); a longer decision is abandoned."""
_WAITING = 64
"""Connections in their handshake, beside four for each client; further ones are cut."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a server grants: clients at once, bytes of a message, and seconds.

    ``handshake_s`` is the longest handshake. ``message_s`` is the longest time to receive a message or to take an
    answer, measured by pings, which a client cannot answer in the middle of a message.
    """

    clients: int = 8
    message_bytes: int = 2**25
    handshake_s: float = 10.0
    message_s: float = 40.0


class Turn:
    """Held while the actor decides: one decision at a time, and none once the server closes."""

    def __init__(self) -> None:
        self._lock, self.closing = threading.Lock(), False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.closing:
            self._lock.release()
            raise FrameError("the server closes")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Conversation(Protocol):
    """What is said on one client's connection."""

    @property
    def greeting(self) -> bytes | None:
        """The server's first message; None where the client begins."""
        ...

    def answer(self, message: bytes | str) -> bytes | str | None:
        """Answer one message; None ends the connection."""
        ...


def logged(kind: str, error: Exception) -> str:
    """Log an error as one line, and return it; only a bug of the server's is logged with its place."""
    bug = None if isinstance(error, WorldrlError) else error
    words = one_line(error if bug is None else f"{type(error).__name__}: {error}")
    logger.warning("%s: %s", one_line(kind), words, exc_info=bug)
    return words


Converse = Callable[[Turn], Conversation]
"""Makes the conversation of a new client."""


def make_handler(converse: Converse, turn: Turn) -> Callable[[Any], None]:
    """Return the handler of a websocket server's connections; ``turn`` is held while the actor decides."""
    left = require("websockets.exceptions", extra=EXTRA).ConnectionClosed

    def handle(connection: Any) -> None:
        conversation = converse(turn)
        try:
            if conversation.greeting is not None:
                connection.send(conversation.greeting)
            for message in connection:
                reply = conversation.answer(message)
                if reply is None or turn.closing:
                    return
                connection.send(reply)
        except left as error:
            if not turn.closing:
                logger.warning("a client left: %s", one_line(error))

    return handle


class SocketServer:
    """Listens, and answers each connection in a thread of its own; a context manager.

    ``converse`` makes the conversation of a new client. The server closes ``listening``, a bound socket. ``token`` is
    what clients must show (None: nothing), as ``Authorization: Api-Key TOKEN`` or ``Bearer TOKEN``.
    """

    def __init__(
        self,
        converse: Converse,
        listening: socket.socket,
        *,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.socket, self._turn, self._ended = listening, Turn(), threading.Event()
        self._limits, self._token = limits or Limits(), token
        self._open: dict[threading.Thread, Any] = {}
        self._lock, self._admitted = threading.Lock(), list[threading.Thread]()
        self._websockets = require("websockets.sync.server", extra=EXTRA)
        self._server = self._websockets.serve(
            make_handler(converse, self._turn),
            sock=listening,
            max_size=self._limits.message_bytes,
            max_queue=2,
            compression=None,  # a small message could grow, and images cost more time than they save
            origins=[None],  # browsers name the page that connects; no page may
            process_request=self._admit,
            open_timeout=self._limits.handshake_s,
            close_timeout=2,
            ping_interval=self._limits.message_s / 2,
            ping_timeout=self._limits.message_s / 2,
            create_connection=self._connect,
            logger=_connection_logger(),
        )

    def _connect(self, sock: socket.socket, *args: Any, **kwargs: Any) -> Any:
        """Make a connection, in its own thread, and store it until that ends."""
        for thread in [thread for thread in list(self._open) if not thread.is_alive()]:
            self._open.pop(thread, None)
        if len(self._open) >= 4 * self._limits.clients + _WAITING:
            raise ConnectionRefusedError("too many connections")  # the caller closes the socket
        sock.settimeout(self._limits.message_s)  # of a whole answer, for a client that does not take it
        connection = self._websockets.ServerConnection(sock, *args, **kwargs)
        self._open[threading.current_thread()] = connection
        return connection

    def _admit(self, connection: Any, request: Any) -> Any:
        """Answer a handshake, or return None to open the connection; runs in its own thread."""
        if request.path == HEALTH:
            return connection.respond(200, "OK\n")
        if self._token is not None and not shows(request.headers.get_all("Authorization"), self._token):
            logger.warning("a client was refused: it does not show the token")
            return connection.respond(401, "this server wants a token: Authorization: Api-Key TOKEN\n")
        with self._lock:
            self._admitted = [thread for thread in self._admitted if thread.is_alive()]
            if len(self._admitted) >= self._limits.clients:
                logger.warning("a client was refused: %d are connected", len(self._admitted))
                return connection.respond(503, f"as many clients as clients={self._limits.clients} are connected\n")
            self._admitted.append(threading.current_thread())
        return None

    def serve_until_interrupted(self) -> None:
        """Serve until Ctrl-C, or until another thread calls :meth:`shutdown`.

        All threads are daemons, so a decision of several minutes cannot hold the process.
        """
        threading.Thread(target=self.serve_forever, daemon=True).start()
        with suppress(KeyboardInterrupt):
            self._ended.wait()

    def serve_forever(self) -> None:
        """Serve until another thread calls :meth:`shutdown`."""
        try:
            self._server.serve_forever()
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Accept no more connections, send clients the end, and cut those that do not answer."""
        self._turn.closing = True
        began_s = time.monotonic()
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        ending.join(GOODBYE_S)
        while time.monotonic() - began_s < CLOSE_S and (ending.is_alive() or self._busy()):
            for connection in self._busy():
                with suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)
            time.sleep(0.02)

    def _busy(self) -> list[Any]:
        return [connection for thread, connection in list(self._open.items()) if thread.is_alive()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def shows(headers: list[str], token: str) -> bool:
    """Whether one of a request's headers shows the token; the time does not depend on what was shown."""
    given = [header.partition(" ") for header in headers]
    return any(
        [
            hmac.compare_digest(shown.strip().encode(errors="replace"), token.encode())
            and kind.lower() in ("api-key", "bearer")
            for kind, _, shown in given
        ]
    )


class _OneLine(logging.Filter):
    """Logs an error without its traceback: a client's fault is no bug of the server's."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.msg, record.args = f"{record.getMessage()}: {one_line(record.exc_info[1])}", ()
            record.exc_info = None
        return True


def _connection_logger() -> logging.Logger:
    found = logging.getLogger(f"{__name__}.connection")
    if not found.filters:
        found.addFilter(_OneLine())
    return found
