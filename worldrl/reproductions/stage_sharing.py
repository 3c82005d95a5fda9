"""What several stages of a run use and only one makes: a recorded dataset, a trained world.

Whichever stage comes first makes it; one that comes meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from worldrl.core.storage.jsonfile import write_json
from worldrl.recipes.folder_lock import exclusive_folder

MADE = "made.json"


def shared(stage: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``run/shared/name``, filled.

    Args:
        stage: folder of the stage that asks, ``run/stages/...``.
        name: of what is shared, seed included.
        make: fills the folder; called again after it was killed.
    """
    with exclusive_folder(stage.parents[1] / "shared" / name) as folder:
        if not (folder / MADE).exists():
            make(folder)
            write_json(folder / MADE, {"name": name})
    return folder
