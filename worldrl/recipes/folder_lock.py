"""Exclusive use of a folder that several runs fill."""

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
    """Use a folder exclusively, made where it is missing; others wait, and a kill lets go (RunDirectoryError)."""
    with disk_errors(folder, needed=0, error=RunDirectoryError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
