"""One process at a time in a folder that several runs fill and use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.atomic import disk_errors, open_regular

LOCK = "lock"


@contextmanager
def exclusive_folder(folder: Path) -> Generator[Path]:
    """Have a folder to oneself; whoever comes meanwhile waits.

    The lock dies with its owner, so after a kill the next to come goes on from what lies there.

    Args:
        folder: made where it is missing.

    Yields:
        The folder.

    Raises:
        RunDirectoryError: it cannot be made or written to.
    """
    with disk_errors(folder, needed=0, error=RunDirectoryError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
