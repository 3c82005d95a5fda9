"""Start-up and end of a worker process: time limits, and how its end is described."""

from __future__ import annotations

import signal

JOIN_S = 5.0
"""How long a worker may take to end after it was asked to (s), before it is killed."""

STARTUP_S = 120.0
"""Least time limit of a worker's first message (s): it imports torch and the simulator, on a busy machine slowly."""


def describe_exit(code: int | None) -> str:
    """Describe how a process ended: a signal's name or an exit code."""
    if code is None:
        return "is still running"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended early with exit code {code}"
