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
from worldrl.runs.reading import find_runs, require_folder
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

    Returns ``{"folder": which}``. Raises RunDirectoryError (there is no such folder), MissingExtraError (starlette,
    uvicorn or websockets is not installed), SettingError (the port is in use).
    """
    folder = Path(settings.folder)
    if settings.table:
        found = find_runs(folder)
        kept = chosen(found, settings.filter)
        console().print(table(kept, f"{len(kept)} of {len(found)} runs in {folder}"))
    else:
        require_web()
        require_folder(folder)
        with closing(listen(HOST, settings.port)) as listening:
            serve(RunsServer(folder, settings.filter).app(), listening, f"runs of {folder}")
    return {"folder": settings.folder}
