"""The terminal's streams: closed, full or without UTF-8, none of them may end in a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

MACHINE = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EMFILE,
        errno.ENFILE, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST,
        errno.ENOENT, errno.EIO, errno.ENOMEM,
    }
)  # fmt: skip
"""What the operating system refuses for reasons of the machine or of a path; everything else is a bug."""


class _Dropping(io.FileIO):
    """A descriptor that drops what cannot be written: nobody reads it any more, or the disk is full."""

    def write(self, data: Any, /) -> int:
        written = None  # as of a full pipe that is set not to wait
        with suppress(OSError):
            written = super().write(data)
        return memoryview(data).nbytes if written is None else written


def open_streams() -> None:
    """Let stderr never fail, make closed streams harmless, and show escapes on a terminal without UTF-8.

    Progress, warnings of libraries and errors go to stderr: a run does not end because nobody reads them.
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
    """Give a closed descriptor to nothing, or the next file or socket that is opened would get what is printed."""
    try:
        os.fstat(number)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def flush_streams() -> None:
    """Write what libraries left in stdout, or the interpreter would print a traceback on leaving."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence(sys.stdout)


def show(text: str) -> None:
    """Write what a command was asked for to stdout; a reader that has left, such as ``head``, has seen enough.

    Raises:
        OSError: it cannot be written for another reason.
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
    """Say in one line what the machine or the embedded suite refused; None for an error that is a bug."""
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return "the reader of the output has closed it; the same command continues the run"
    if isinstance(error, MemoryError):
        return "the machine has too little memory for these settings; give smaller sizes or batches"
    if isinstance(error, OSError) and error.errno in MACHINE:
        return f"{error.filename or 'this machine'}: {error.strerror}; check path, permissions and free space"
    errors = sys.modules.get("worldrl_envs.errors")  # that package is not imported for it, and knows no WorldrlError
    return str(error) if errors is not None and isinstance(error, errors.EnvsError) else None


def say(text: str) -> None:
    """Write a line to stderr, which :func:`open_streams` made safe."""
    sys.stderr.write(f"{text}\n")


def silence(stream: Any) -> None:
    """Let a stream whose reader is gone write nowhere, so that leaving the interpreter does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
