"""The local web server of ``worldrl play``: one page, and a websocket for each tab.

A tab has a session of its own, named by a token in the page's address. A tab that lost its socket connects again with
the token and continues. Another tab with the same token takes the session over, and the first one shows that.
Computation runs in threads, one request of a session after the other.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.errors import SettingError, WorldrlError
from worldrl.core.extras import require
from worldrl.play.messages import (
    DriveRequest,
    PolicyRequest,
    Request,
    SaveRequest,
    StartRequest,
    UndoRequest,
    chunk_message,
    decode_request,
    greeting,
    start_message,
)
from worldrl.play.recording import Recorder
from worldrl.play.session import Session, Worlds
from worldrl.recipes.local_server import BASE, EXTRA, application

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": (PAGE / "index.html", "text/html"),
    "/play.js": (PAGE / "play.js", "text/javascript"),
    "/play.css": (PAGE / "play.css", "text/css"),
    **BASE,
}
TAKEN_OVER, FULL = 4001, 4002
"""Close codes after which the page does not connect again by itself."""
KEPT_S = 60.0
"""A session without a tab is kept so long (s), at the least."""


@dataclass
class Tab:
    """A session, the socket that drives it now, and since when there is none (s)."""

    token: str
    session: Session
    socket: Any = None
    left_s: float = 0.0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PlayServer:
    """Serves at most ``most`` tabs; ``shown`` are names of the world model and the policy for the page."""

    def __init__(self, worlds: Worlds, recorder: Recorder, most: int, shown: Mapping[str, str]) -> None:
        self._worlds, self._recorder, self._most, self._shown = worlds, recorder, most, shown
        self._tabs: dict[str, Tab] = {}
        self._gone = require("starlette.websockets", extra=EXTRA).WebSocketDisconnect
        self._sessions, self._seconds = 0, list[float]()

    def app(self) -> Any:
        """Make the web application."""
        socket = require("starlette.routing", extra=EXTRA).WebSocketRoute
        return application(FILES, [socket("/drive", self._connect)])

    def metrics(self) -> dict[str, Any]:
        """What was done so far; milliseconds of computing a chunk, without the network."""
        milliseconds = 1000 * np.array(self._seconds)
        driven, saved = len(self._seconds), self._recorder.saved
        shares = {f"p{share}": float(np.percentile(milliseconds, share)) for share in (50, 95)} if driven else None
        return {"sessions": self._sessions, "chunks": driven, "saved": saved, "chunk_ms": shares}

    def close(self) -> None:
        """Release all sessions."""
        for tab in self._tabs.values():
            tab.session.close()

    async def _connect(self, client: Any) -> None:
        if not same_origin(client.headers):
            await client.close()  # before it is accepted: HTTP status 403
            return
        await client.accept()
        try:
            tab = await self._open(client.query_params.get("session", ""))
        except SettingError as refusal:
            await client.send_text(_failure(refusal))
            await client.close(FULL)
            return
        try:
            await self._take_over(tab, client)
            while (text := await _received(client)) is not None:
                async with tab.turn:
                    await self._answer(tab, client, text)
        except self._gone:
            return
        finally:
            if tab.socket is client:
                tab.socket, tab.left_s = None, time.monotonic()

    async def _open(self, token: str) -> Tab:
        """Return the session of a token, or a new one; SettingError where there are too many."""
        if token in self._tabs:
            return self._tabs[token]
        left = [tab for tab in self._tabs.values() if tab.socket is None and time.monotonic() - tab.left_s > KEPT_S]
        oldest = min(left, key=lambda tab: tab.left_s, default=None)
        if len(self._tabs) >= self._most and oldest is None:
            raise SettingError(
                f"tabs: as many are open as tabs={self._most} allows; close one and wait a minute, or start worldrl play with a "
                "larger number"
            )
        tab = Tab(secrets.token_urlsafe(16), Session(self._worlds))
        self._tabs[tab.token], self._sessions = tab, self._sessions + 1
        if len(self._tabs) > self._most and oldest is not None:
            del self._tabs[oldest.token]
            await asyncio.to_thread(oldest.session.close)
        return tab

    async def _take_over(self, tab: Tab, client: Any) -> None:
        """Make this socket the session's, and show what was driven so far."""
        earlier, tab.socket = tab.socket, client
        if earlier is not None:
            with suppress(self._gone, RuntimeError):  # RuntimeError: it is closed already
                await earlier.close(TAKEN_OVER)
        async with tab.turn:
            session = tab.session
            hello = greeting(self._worlds, tab.token, session, self._shown["world_model"], self._shown["policy"])
            await self._send(tab, client, json.dumps(hello))
            if session.started:
                await self._send(tab, client, start_message(session))
            for number in range(len(session.chunks)):
                await self._send(tab, client, chunk_message(session, number))

    async def _answer(self, tab: Tab, client: Any, text: str) -> None:
        try:
            reply = await asyncio.to_thread(self._serve, tab.session, decode_request(text))
        except WorldrlError as refusal:
            reply = _failure(refusal)
        await self._send(tab, client, reply)

    async def _send(self, tab: Tab, client: Any, message: str | bytes) -> None:
        if tab.socket is not client:
            raise self._gone
        await (client.send_bytes(message) if isinstance(message, bytes) else client.send_text(message))

    def _serve(self, session: Session, request: Request) -> str | bytes:
        """Do what is asked, and return the answer."""
        match request:
            case StartRequest(task, index):
                session.start(task, index)
                return start_message(session)
            case DriveRequest(action):
                session.drive(np.array(action, np.float64))
            case PolicyRequest():
                session.follow_policy()
            case UndoRequest(keep):
                session.undo(keep)
                return json.dumps({"kind": "undo", "keep": keep})
            case SaveRequest():
                steps = self._recorder.save(session)
                return json.dumps({"kind": "saved", "steps": steps, "folder": str(self._recorder.folder)})
        self._seconds.append(session.chunks[-1].seconds)
        return chunk_message(session, len(session.chunks) - 1)


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a socket is opened by this server's own page, or by no page at all."""
    return headers.get("origin") in (None, f"http://{headers.get('host')}")


async def _received(client: Any) -> str | None:
    """Return the next message as text, empty for a binary one; None where the tab is gone."""
    message = await client.receive()
    return None if message["type"] == "websocket.disconnect" else message.get("text") or ""


def _failure(error: WorldrlError) -> str:
    return json.dumps({"kind": "error", "message": str(error)})
