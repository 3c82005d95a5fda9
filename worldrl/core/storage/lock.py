"""One owner at a time for a folder, by an OS lock that dies with its owner; the file's content is for people only."""

import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.atomic import FULL, disk_errors, open_regular


def take_lock(file: Path, command: str) -> int:
    """Lock a file, made if missing and never deleted, and write the owner's ``command`` into it; closing lets go.

    RunDirectoryError where another process has it (the message names it), or the file system has no locks.
    """
    with disk_errors(file, needed=0, error=RunDirectoryError):
        lock = open_regular(file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
        }
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(owner).encode(), 0)
    except BlockingIOError as reason:
        os.close(lock)
        raise RunDirectoryError(
            f"{file.parent}: in use by {_owner(file)}; wait for it, stop it, or choose another run_dir"
        ) from reason
    except OSError as reason:
        os.close(lock)
        raise RunDirectoryError(
            f"{file}: cannot be locked ({reason.strerror}); "
            + (
                "free some space, or choose another run_dir"
                if reason.errno in FULL
                else "choose a run_dir on a local disk"
            )
        ) from reason
    return lock


def owner_works(lock: int) -> bool | None:
    """Whether the process that an opened lock file names still holds it; None where that is one of another machine.

    The lock is tried only where the process lives, so that no run that starts meanwhile finds it taken.
    """
    try:
        owner = json.loads(os.pread(lock, 4096, 0))
        host, pid = owner["host"], int(owner["pid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False  # empty, or not ours
    if host != socket.gethostname():
        return None
    if not Path(f"/proc/{pid}").exists():
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False  # another process got the number; closing lets go


def _owner(file: Path) -> str:
    try:
        owner = json.loads(file.read_bytes())
        return f"process {owner['pid']} on {owner['host']} ({owner['command']}, since {owner['started']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
