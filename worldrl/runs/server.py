"""The local web server of ``worldrl runs``: one page, what it asks for, and files of the listed runs.

Only reading is possible. A report is somebody else's page: it is sent with a policy that lets it run no script, send
nothing, and be of no origin, so that it cannot reach this server either.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path, PurePosixPath
from typing import Any

from worldrl.core.errors import RunDirectoryError, WorldrlError
from worldrl.core.extras import require
from worldrl.core.storage.below import open_below, read_below
from worldrl.recipes.local_server import BASE, EXTRA, answer, application, opened
from worldrl.runs.listing import as_plain, chosen, differing
from worldrl.runs.reading import Kept, find_runs, read_curves

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": (PAGE / "index.html", "text/html"),
    "/runs.js": (PAGE / "runs.js", "text/javascript"),
    "/runs.css": (PAGE / "runs.css", "text/css"),
    **BASE,
}
FILM = "video/mp4"
KINDS = {
    ".html": "text/html", ".mp4": FILM, ".png": "image/png",
    ".json": "text/plain", ".jsonl": "text/plain", ".yaml": "text/plain",
}  # fmt: skip
"""Files that are sent, and as what."""
REPORT = (
    "sandbox allow-popups; default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Content policy of files of runs: no script, no request, an origin of its own."""
LARGEST = 256 * 2**20
"""Bytes of a file that is sent as a whole; films are sent in the ranges that a browser asks for."""
MOST_FILTER = 500


class RunsServer:
    """Serves what lies below ``folder``; ``words`` is the filter of a page that names none."""

    def __init__(self, folder: Path, words: str = "") -> None:
        self._words = words
        self._folder, self._turn, self._kept = folder, asyncio.Lock(), Kept()
        self._route = require("starlette.routing", extra=EXTRA).Route

    def app(self) -> Any:
        """Make the web application."""
        served = {"/api/runs": self._runs, "/api/curves/{name:path}": self._curves, "/file/{name:path}": self._file}
        return application(FILES, [self._route(path, call) for path, call in served.items()])

    async def _runs(self, request: Any) -> Any:
        words = request.query_params.get("filter", self._words)[:MOST_FILTER]
        async with self._turn:  # one reader, however many tabs ask
            return await _answered(lambda: _json(self.listed(words)))

    async def _curves(self, request: Any) -> Any:
        name = request.path_params["name"]
        return await _answered(lambda: _json(read_curves(self._folder, name)))

    async def _file(self, request: Any) -> Any:
        return await _answered(lambda: self._sent(request.path_params["name"]))

    def listed(self, words: str) -> dict[str, Any]:
        """Return what the page lists: the runs that fit a filter, and of how many."""
        runs = find_runs(self._folder, self._kept)
        kept = chosen(runs, words)
        differs = differing(kept)
        return {
            "folder": str(self._folder),
            "filter": words,
            "of": len(runs),
            "runs": [as_plain(run, differs[run.name]) for run in kept],
        }

    def _sent(self, name: str) -> Any:
        kind = KINDS.get(PurePosixPath(name).suffix)
        if kind is None or any(part.startswith(".") for part in name.split("/")):
            raise RunDirectoryError(f"{name}: is not sent; files that are end with {', '.join(KINDS)}")
        if kind == FILM:
            return opened(open_below(self._folder, name), kind, policy=REPORT)
        return answer(read_below(self._folder, name, LARGEST), kind, policy=REPORT)


async def _answered(make: Any) -> Any:
    try:
        return await asyncio.to_thread(make)
    except WorldrlError as refusal:
        return answer(str(refusal), "text/plain", status=404)


def _json(value: Any) -> Any:
    return answer(json.dumps(value), "application/json")
