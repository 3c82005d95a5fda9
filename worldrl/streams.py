"""The terminal's streams: a closed, full or non-UTF-8 stream must not cause a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

from worldrl.core.visible import visible

MACHINE = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EMFILE,
        errno.ENFILE, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST,
        errno.ENOENT, errno.EIO, errno.ENOMEM,
    }
)  # fmt: skip
"""Errors of the operating system that are caused by the machine or a path; every other one is a bug."""


class _Dropping(io.FileIO):
    """A descriptor that drops what cannot be written: its reader has closed it, or the disk is full."""

    def write(self, data: Any, /) -> int:
        written = None  # also returned by a full non-blocking pipe
        with suppress(OSError):
            written = super().write(data)
        return memoryview(data).nbytes if written is None else written


def open_streams() -> None:
    """Make stderr never fail and closed streams harmless, and show escapes on a terminal without UTF-8.

    Progress, warnings of libraries and errors go to stderr: a run must not end because its reader has closed it.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: Any = getattr(sys, name)
        if stream is None:
            _open_nowhere(number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        elif stream is sys.__stderr__:
            raw = io.BufferedWriter(_Dropping(number, "w", closefd=False))
            sys.stderr = io.TextIOWrapper(raw, stream.encoding, errors="backslashreplace", line_buffering=True)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _open_nowhere(number: int) -> None:
    """Open a closed descriptor on the null device; otherwise the next opened file or socket would receive printed text."""
    try:
        os.fstat(number)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def flush_streams() -> None:
    """Write what libraries left in stdout; otherwise the interpreter would print a traceback at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence(sys.stdout)


def show(text: str) -> None:
    """Write a command's output to stdout; a closed reader, such as ``head``, is no error.

    Raises OSError (writing failed for another reason).
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise OSError(error.errno, error.strerror, "standard output") from error


def machine_fault(error: BaseException) -> str | None:
    """Describe in one line what the machine or the embedded suite refused; None for an error that is a bug."""
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return "the reader of the output has closed it; the same command resumes the run"
    if _lacks_memory(error):
        return "the machine has too little memory for these settings; give smaller sizes or batches"
    if isinstance(error, OSError) and error.errno in MACHINE:
        return f"{error.filename or 'this machine'}: {error.strerror}; check path, permissions and free space"
    errors = sys.modules.get("worldrl_envs.errors")  # not imported for this check; its errors are no WorldrlError
    return str(error) if errors is not None and isinstance(error, errors.EnvsError) else None


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory ended: Python's error, or one of torch, whose allocator on CPUs has a RuntimeError without class.

    Many threads can leave no address space for a library that is imported later.
    """
    of_torch = isinstance(error, RuntimeError) and (
        "allocate memory" in str(error) or "not enough memory" in str(error)
    )
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    return isinstance(error, MemoryError) or of_torch or unmapped or type(error).__name__ == "OutOfMemoryError"


def say(text: str) -> None:
    """Write a line to stderr, which :func:`open_streams` made safe; control characters of names are shown as escapes."""
    sys.stderr.write(f"{visible(text)}\n")


def silence(stream: Any) -> None:
    """Redirect a stream without reader to the null device, so that the interpreter exits without failure."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
