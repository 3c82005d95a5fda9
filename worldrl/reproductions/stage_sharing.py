"""Parts that several stages of a run use: the first stage makes them, a concurrent one waits."""

from collections.abc import Callable
from pathlib import Path

from worldrl.core.storage.jsonfile import write_json
from worldrl.recipes.folder_lock import exclusive_folder

MADE = "made.json"


def shared(stage: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``run/shared/name`` for a ``stage`` of the run; ``make`` fills it, again after a kill."""
    with exclusive_folder(stage.parents[1] / "shared" / name) as folder:
        if not (folder / MADE).exists():
            make(folder)
            write_json(folder / MADE, {"name": name})
    return folder
