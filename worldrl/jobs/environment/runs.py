"""``worldrl runs``: all run directories of a folder, on a local page or as a table on the terminal."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.storage.log import console
from worldrl.recipes.listening import listen
from worldrl.recipes.local_server import HOST, require_web, serve
from worldrl.runs.listing import chosen, table
from worldrl.runs.reading import find_runs
from worldrl.runs.server import RunsServer
from worldrl.settings import setting


@dataclass
class RunsSettings:
    """Which runs, and where they are shown."""

    folder: str = setting("runs", "folder whose run directories are shown, at any depth")
    filter: str = setting("", "show only runs that fit all words: rounds=3 (a setting), state=running, or any text")
    table: bool = setting(False, "print a table on the terminal in place of the page; also written --table")
    port: int = setting(0, "port on this machine (127.0.0.1); 0 takes a free one")


def main(settings: RunsSettings) -> dict[str, Any]:
    """Show the runs until interrupted, or print their table.

    Returns ``{"runs": how many fit}`` as they were at the start. Raises RunDirectoryError (there is no such folder),
    MissingExtraError (starlette, uvicorn or websockets is not installed), SettingError (the port is in use).
    """
    folder = Path(settings.folder)
    if not settings.table:
        require_web()
    found = find_runs(folder)
    kept = chosen(found, settings.filter)
    if settings.table:
        console().print(table(kept, f"{len(kept)} of {len(found)} runs in {folder}"))
    else:
        with closing(listen(HOST, settings.port)) as listening:
            serve(RunsServer(folder).app(), listening, f"{len(found)} runs")
    return {"runs": len(kept)}
