"""The terminal's streams: closed, full or without UTF-8, none of them may end in a traceback."""

from __future__ import annotations

import errno
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


def open_streams() -> None:
    """Make closed streams harmless, and let a terminal without UTF-8 show escapes instead of failing."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flush_streams() -> bool:
    """Write what is buffered, or the interpreter would print a traceback on leaving; False where that failed."""
    whole = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)
            whole = False
    return whole


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
    """Write a line to stderr; a full or closed one changes nothing."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)


def silence(stream: Any) -> None:
    """Let a stream whose reader is gone write nowhere, so that leaving the interpreter does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
