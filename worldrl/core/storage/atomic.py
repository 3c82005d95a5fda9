"""Files and folders that appear whole or not at all, whatever kills the process.

A write goes to ``<name>.tmp-<uuid>`` in the same folder, is flushed to the disk, and is renamed into place. The
writer holds an OS lock on its temporary, so that anyone can tell a dead attempt (removed) from a live one (left).

Replacing a folder takes two renames::

    path            -> path.old-<uuid>     killed here: :func:`recover` moves the old one back
    path.tmp-<uuid> -> path                killed here: :func:`recover` removes the old one
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from worldrl.core.errors import ArtefactError, RunDirectoryError, WorldrlError

LEFTOVER = re.compile(r"(?P<name>.+)\.(?P<role>tmp|old)-(?P<id>[0-9a-f]{32})")

IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REFUSED = frozenset({errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOENT})


def write_file(path: Path, data: bytes, *, error: type[WorldrlError] = RunDirectoryError) -> None:
    """Write a file so that readers see the old content or the new; ``error`` where the disk refuses."""
    with disk_errors(path, needed=len(data), error=error):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path.parent, path.name)
        temp, descriptor = _claim(path, folder=False)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            os.replace(temp, path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        fsync(path.parent)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file to write; OSError as ``os.open``, ELOOP for a link, EEXIST for a pipe or a device."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EEXIST, "is no regular file", str(path))
    return descriptor


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file to append to it, as :func:`open_regular` does; made if missing."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


@contextmanager
def atomic_folder(path: Path, *, needed: int = 0) -> Generator[Path]:
    """Fill a temporary folder that takes the place of ``path`` when the block ends well, else is removed.

    ``needed`` bytes (0: unknown) are checked against the free space first. ArtefactError where the disk refuses, or
    ``path`` is a file.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ArtefactError(f"{path}: is a file or a link, a folder must go here; move it away or choose another path")
    with disk_errors(path, needed=needed, error=ArtefactError):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path.parent, path.name)
        if needed > free_bytes(path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temp, descriptor = _claim(path, folder=True)
        try:
            yield temp
            _sync_tree(temp)
            _replace_folder(temp, path)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
        finally:
            os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Delete a folder so that a kill leaves it whole or gone, never a part of it under its own name."""
    temp = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    with disk_errors(path, needed=0, error=RunDirectoryError):
        os.replace(path, temp)
        fsync(path.parent)
        shutil.rmtree(temp)


def recover(parent: Path, name: str | None = None) -> None:
    """Remove what dead writers left in ``parent`` (of ``name`` alone, if given), and undo a half-done replacement."""
    for leftover in sorted(parent.iterdir()):  # "old" sorts before "tmp": roll back first
        match = LEFTOVER.fullmatch(leftover.name)
        if match is None or (name is not None and match["name"] != name):
            continue
        target = parent / match["name"]
        twin = parent / f"{match['name']}.tmp-{match['id']}"
        if twin.exists() and not _is_dead(twin):
            continue
        if match["role"] == "old" and twin.exists() and not target.exists():
            os.replace(leftover, target)
        else:
            _remove(leftover)


def free_bytes(folder: Path) -> int:
    """Return the bytes this user may still write on the file system of ``folder``."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@contextmanager
def disk_errors(path: Path, *, needed: int, error: type[WorldrlError]) -> Generator[None]:
    """Turn an operating system refusal to write ``path`` (of ``needed`` bytes, 0: unknown) into ``error``."""
    try:
        yield
    except OSError as reason:
        if reason.errno not in REFUSED | FULL | IN_THE_WAY:
            raise
        why, fix = reason.strerror, "nothing was changed; choose a folder you may write to"
        if reason.errno in FULL:
            why = f"{why} ({_room(path, needed)})"
            fix = "nothing was changed; free some space, or choose another folder"
        elif reason.errno in IN_THE_WAY:
            fix = "a file or a link to nothing is in the way; move it away, or choose another folder"
        raise error(f"{path}: cannot be written: {why}; {fix}") from reason


def _room(path: Path, needed: int) -> str:
    wanted = f"{needed} bytes needed" if needed else "size unknown"
    with suppress(OSError):
        return f"{wanted}, {free_bytes(path.parent)} bytes free"
    return wanted


def _claim(path: Path, *, folder: bool) -> tuple[Path, int]:
    """Make and lock a temporary beside ``path``; a tidier may win the race for an unlocked one, hence the loop."""
    while True:
        temp = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
        if folder:
            temp.mkdir()
        try:
            descriptor = os.open(temp, os.O_RDONLY if folder else os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # a file system without locks: leftovers then stay until removed by hand
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if temp.exists():
            return temp, descriptor
        os.close(descriptor)


def _is_dead(temp: Path) -> bool:
    try:
        descriptor = os.open(temp, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _replace_folder(temp: Path, path: Path) -> None:
    aside = path.with_name(f"{path.name}.old-{temp.name.rpartition('-')[2]}")
    try:
        if path.exists():
            os.replace(path, aside)
        os.replace(temp, path)
    except BaseException:
        if aside.exists() and not path.exists():
            os.replace(aside, path)
        raise
    fsync(path.parent)
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            fsync(Path(root) / name)
        fsync(Path(root))


def fsync(path: Path) -> None:
    """Make a file's content, or the names inside a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
