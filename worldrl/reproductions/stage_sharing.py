"""Parts that several stages of a run use: the first stage makes them, a concurrent one waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worldrl.core.storage.jsonfile import write_json
from worldrl.recipes.folder_lock import exclusive_folder

MADE = "made.json"


def shared(stage: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``run/shared/name``, filled.

    Args:
        stage: folder of the present stage, ``run/stages/...``.
        name: of the shared part, seed included.
        make: fills the folder; called again after it was killed.
    """
    with exclusive_folder(stage.parents[1] / "shared" / name) as folder:
        if not (folder / MADE).exists():
            make(folder)
            write_json(folder / MADE, {"name": name})
    return folder
