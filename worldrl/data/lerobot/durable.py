"""Writing so that a kill at any instant leaves either the old file or the new one, never half of one.

``kill -9`` alone would be survived by the rename; ``fsync`` before it and on the directory after it also survives
a power cut. Names under way end in ``.partial``, which no reader's pattern matches.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import open_regular, open_to_append

PARTIAL_SUFFIX = ".partial"


def fsync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, flush it to the disk, rename it into place.

    Args:
        path: the final name; its folder is created when missing.
        content: the whole file.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with os.fdopen(open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    fsync_folder(path.parent)


def append_durably(path: Path, content: bytes) -> None:
    """Append ``content`` with one write and flush it to the disk.

    Args:
        path: an existing file.
        content: what to append; a kill may leave a prefix of it, so the caller's format must show a torn tail.

    Raises:
        OSError: the write failed; the file is cut back to its former length.
    """
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
    """Hold an exclusive lock; the kernel lets go of it when the process dies, however it dies.

    Args:
        path: the lock file, created when missing and left in place.
        purpose: what is locked, for the message.

    Raises:
        ArtefactError: another process (or another writer in this one) holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_to_append(path) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtefactError(
                f"{purpose} is being written by another writer (lock {path}); wait for it, or close that writer"
            ) from error
        yield
