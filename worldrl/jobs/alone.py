"""One process at a time in a folder that several runs fill and use."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"


@contextmanager
def alone_in(folder: Path) -> Generator[Path]:
    """Have a folder to oneself; whoever comes meanwhile waits.

    The lock dies with its owner, so after a kill the next to come goes on from what lies there.

    Args:
        folder: made where it is missing.

    Yields:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
