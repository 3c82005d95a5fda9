"""What several stages of a run use and only one makes: a recorded dataset, a trained world.

Whichever stage comes first makes it; one that comes meanwhile waits. The lock dies with its owner, so after a kill
the next to come goes on from the checkpoints that lie there.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

from worldrl.core.jsonfile import write_json

LOCK, MADE = "lock", "made.json"


def shared(stage: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``run/shared/name``, filled.

    Args:
        stage: folder of the stage that asks, ``run/stages/...``.
        name: of what is shared, seed included.
        make: fills the folder; called again after it was killed.
    """
    folder = stage.parents[1] / "shared" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / MADE).exists():
            make(folder)
            write_json(folder / MADE, {"name": name})
    return folder
