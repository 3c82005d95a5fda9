"""A process that belongs to this one: spawned, it ignores Ctrl-C, and it ends with its parent, however that ends."""

import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from os import _exit
from typing import Any


def start_child(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Run ``target(*arguments)`` in a new process.

    Ctrl-C reaches the whole group, and the parent ends its children. The child inherits the blocked signal, since its
    imports take seconds before it could ignore anything.
    """
    process = get_context("spawn").Process(target=_run, args=(target, *arguments), daemon=True)
    resource_tracker.ensure_running()  # now: it unblocks the signal where it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _run(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _exit(1)
