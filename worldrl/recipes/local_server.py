"""A web server for this machine alone, which `play` and `runs` share: what it refuses, and how its pages are sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from worldrl.core.extras import require
from worldrl.core.storage.log import console

EXTRA = "play"
PACKAGES = ("starlette", "uvicorn", "websockets")
HOST, NAMES = "127.0.0.1", ("127.0.0.1", "localhost")
BASE = {"/base.css": (Path(__file__).parents[1] / "evaluation/report/templates/base.css", "text/css")}
"""The style sheet of every page."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
LARGEST = 4096
"""Bytes of a message on a websocket."""
GOODBYE_S = 1
"""Time for tabs to confirm that the server closes (s)."""


def require_web() -> None:
    """Raise MissingExtraError, before anything is loaded, where a package of the extra is not installed."""
    for package in PACKAGES:
        require(package, extra=EXTRA)


def answer(content: bytes | str, kind: str, *, status: int = 200, policy: str = "") -> Any:
    """Make the response of some content, with the headers of every answer; ``policy`` is another content policy."""
    response = require("starlette.responses", extra=EXTRA).Response
    headers = HEADERS | ({"Content-Security-Policy": policy} if policy else {})
    return response(content, status, media_type=kind, headers=headers)


def opened(file: AbstractContextManager[int], kind: str, *, policy: str) -> Any:
    """Make the response of an open file, of which a browser may ask for ranges of bytes; closes it afterwards."""
    base = require("starlette.responses", extra=EXTRA).FileResponse

    class Opened(base):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with held:
                await super().__call__(scope, receive, send)

    with ExitStack() as stack:
        number = stack.enter_context(file)
        headers = HEADERS | {"Content-Security-Policy": policy}
        # By its descriptor: whoever puts a link in its place meanwhile changes nothing.
        made = Opened(f"/dev/fd/{number}", media_type=kind, headers=headers, stat_result=os.fstat(number))
        held = stack.pop_all()
    return made


def application(files: Mapping[str, tuple[Path, str]], routes: Sequence[Any]) -> Any:
    """Make the application of pages (path → file and its type) and further routes, for own hosts and own pages only."""
    route = require("starlette.routing", extra=EXTRA).Route
    middleware = require("starlette.middleware", extra=EXTRA).Middleware
    hosts = require("starlette.middleware.trustedhost", extra=EXTRA).TrustedHostMiddleware

    async def page(request: Any) -> Any:
        file, kind = files[request.url.path]
        return answer(file.read_bytes(), kind)

    guards = [middleware(hosts, allowed_hosts=list(NAMES)), middleware(OwnPages)]
    starlette = require("starlette.applications", extra=EXTRA).Starlette
    return starlette(routes=[*(route(path, page) for path in files), *routes], middleware=guards)


class OwnPages:
    """Refuses what pages of other origins request; a person may follow a link to here."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 403, or pass the request on."""
        sent = dict(scope.get("headers", ()))
        followed = (sent.get(b"sec-fetch-mode"), sent.get(b"sec-fetch-dest")) == (b"navigate", b"document")
        own = followed or scope["type"] != "http" or sent.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        passed = self._app if own else answer("asked by a page of another origin", "text/plain", status=403)
        await passed(scope, receive, send)


def make_server(app: Any) -> Any:
    """Make the uvicorn server of an application; its ``run(sockets=[listening])`` serves."""
    uvicorn = require("uvicorn", extra=EXTRA)
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=LARGEST,
        ws_per_message_deflate=False,  # raw images on one machine: compressing costs more than sending
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )
    return uvicorn.Server(config)


def serve(app: Any, listening: socket.socket, does: str) -> None:
    """Say where the page is, and serve until Ctrl-C."""
    port = listening.getsockname()[1]
    console().print(f"{does} on http://{HOST}:{port}/ (this machine only); Ctrl-C ends it", markup=False)
    with suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[listening])
