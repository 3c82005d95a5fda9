"""Writing so that a kill at any instant leaves either the old file or the new one, never half of one.

``fsync`` before the rename and on the directory after it survives a power cut, too. Names under way end in
``.partial``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import fsync, open_regular, open_to_append

PARTIAL_SUFFIX = ".partial"


def write_durably(path: Path, content: bytes) -> None:
    """Write a whole file beside ``path`` and rename it into place; OSError where the disk refuses, nothing changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with os.fdopen(open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    fsync(path.parent)


def append_durably(path: Path, content: bytes) -> None:
    """Append with one write; OSError cuts the file back. A kill may leave a prefix, so a torn tail must show."""
    length = path.stat().st_size
    try:
        with open_to_append(path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.truncate(path, length)
        raise


@contextmanager
def writer_lock(path: Path, purpose: str) -> Iterator[None]:
    """Hold an exclusive lock, which ends with the process; ArtefactError where another writer holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_to_append(path) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtefactError(
                f"{purpose} is being written by another writer (lock {path}); wait for it, or close that writer"
            ) from error
        yield
