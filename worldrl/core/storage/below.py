"""Files below a folder, read so that no link, ``..``, pipe or device leads elsewhere, whoever wrote them."""

import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from worldrl.core.errors import RunDirectoryError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_below(root: Path, name: str) -> Generator[int]:
    """Open a regular file to read, ``name`` relative to ``root``; RunDirectoryError where it is none, or a link."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise RunDirectoryError(f"{name!r}: is no name of a file below {root}; leave out empty parts and dots")
    with ExitStack() as stack:
        try:
            at = os.open(root, _FOLDER & ~os.O_NOFOLLOW)  # the root is what the user named, and may be a link
            stack.callback(os.close, at)
            for part, flags in [*((part, _FOLDER) for part in parts[:-1]), (parts[-1], _FILE)]:
                at = os.open(part, flags, dir_fd=at)
                stack.callback(os.close, at)
        except OSError as reason:
            raise RunDirectoryError(f"{name}: cannot be read ({reason.strerror}); links are not followed") from reason
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise RunDirectoryError(f"{name}: is no regular file, and is not read")
        yield at


def read_below(root: Path, name: str, most: int, *, last: bool = False) -> bytes:
    """Read a file as :func:`open_below`; of one beyond ``most`` bytes only the ``last`` ones, else RunDirectoryError."""
    with open_below(root, name) as file:
        size = os.fstat(file).st_size
        if size > most and not last:
            raise RunDirectoryError(f"{name}: {size} bytes, more than the {most} that are read; it is not ours")
        return os.pread(file, most, max(0, size - most))
