"""The client's end of a connection: metadata first, one answer for each message, bounded waits and reconnects."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from worldrl.core.errors import RemoteError
from worldrl.core.extras import require
from worldrl.policies.remote.address import Address
from worldrl.policies.remote.packing import EXTRA, FrameError, one_line, pack, unpack
from worldrl.policies.remote.token import read_token

OPEN_S = 10.0
"""Longest handshake, and wait for the metadata (s)."""
RECONNECTS = 2
PAUSE_S = 0.5
"""Pause before a reconnect, and twice as long before the next (s)."""
LARGEST = 2**28  # bytes of an answer


class Link:
    """A connection, opened with the first request. :attr:`metadata` is what the server says of itself.

    ``first`` is the message with it, as it must be (None: any); :attr:`first` as it came.
    """

    def __init__(self, address: Address, first: bytes | None = None) -> None:
        self.address, self.metadata, self.first = address, dict[str, Any](), first
        self._token = read_token(Path(address.token_file)) if address.token_file else None
        self._connection: Any = None
        self._left = require("websockets.exceptions", extra=EXTRA).ConnectionClosed

    def open(self) -> Any:
        """Connect, if it is not connected; RemoteError where there is no such server, or another one than before."""
        if self._connection is not None:
            return self._connection
        errors = require("websockets.exceptions", extra=EXTRA)
        try:
            self._connection = self._connect()
            first = self._receive(OPEN_S)
        except errors.InvalidStatus as error:
            raise RemoteError(self._line(_REFUSALS.get(error.response.status_code, one_line(error)))) from None
        except TimeoutError:
            self._cut()
            raise RemoteError(self._line(f"no handshake and metadata within {OPEN_S:g} s")) from None
        except (OSError, errors.WebSocketException, EOFError) as error:
            self._cut()
            raise RemoteError(self._line(f"cannot connect: {one_line(error)}; is the server running?")) from None
        self._greet(first)
        return self._connection

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises RemoteError: the server left and does not come back, is too slow, answers with an error, or with what is
        no map.
        """
        message, lost = pack(request), ""
        for attempt in range(1 + RECONNECTS):
            try:
                self.open().send(message)
                return self._read(self._receive(self.address.timeout_s))
            except TimeoutError:
                self._cut()
                raise RemoteError(
                    self._line(
                        f"no answer within timeout_s={self.address.timeout_s:g} s; give a larger one in the address"
                    )
                ) from None
            except self._left as error:
                self._cut()
                lost = self._line(f"the server left: {one_line(error)}")
            except RemoteError as error:
                if self._connection is not None or self.first is None:
                    raise
                lost = str(error)
            if attempt < RECONNECTS:
                time.sleep(PAUSE_S * 2**attempt)
        raise RemoteError(f"{lost}; {RECONNECTS} reconnects failed")

    def close(self) -> None:
        """End the connection, if there is one; a server that does not answer is left after a second."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _cut(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_socket()

    def _connect(self) -> Any:
        header = {} if self._token is None else {"Authorization": f"Api-Key {self._token}"}
        opening = require("websockets.sync.client", extra=EXTRA).connect(
            self.address.url,
            additional_headers=header,
            open_timeout=OPEN_S,
            close_timeout=1,
            ping_interval=None,  # OpenPI's server answers none while it decides, which may take a minute at first
            max_size=LARGEST,
            max_queue=2,
            compression=None,
            proxy=None,
        )
        connection = opening.__enter__()
        connection.socket.settimeout(self.address.timeout_s)  # of sending a request
        return connection

    def _receive(self, timeout_s: float) -> bytes | str:
        return self._connection.recv(timeout=timeout_s)

    def _greet(self, first: bytes | str) -> None:
        if isinstance(first, str):
            self._cut()
            raise RemoteError(self._line(f"the first message must be metadata, it is text: {one_line(first)}"))
        try:
            found = unpack(first)
        except FrameError as error:
            self._cut()
            raise RemoteError(self._line(f"its metadata: {error}")) from None
        if self.first not in (None, first):
            self._cut()
            raise RemoteError(self._line("another policy answers than at the start; begin again"))
        self.first, self.metadata = first, found

    def _read(self, answer: bytes | str) -> dict[str, Any]:
        if isinstance(answer, str):
            last = next((line for line in reversed(answer.splitlines()) if line.strip()), "an empty text")
            raise RemoteError(self._line(f"the server refuses: {one_line(last)}"))
        try:
            return unpack(answer)
        except FrameError as error:
            raise RemoteError(self._line(f"its answer: {error}")) from None

    def _line(self, words: str) -> str:
        return f"{self.address.url}: {words}"


_REFUSALS = {
    401: "the server wants a token; give ?token_file=FILE with the one of the server",
    403: "the server refuses this client (HTTP 403)",
    503: "as many clients as the server allows are connected (HTTP 503)",
}
