"""Ctrl-C between two steps of a training, never within one."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from worldrl.core.storage.log import console, in_worker


@contextmanager
def interrupts(unit: str = "step") -> Generator[Callable[[], bool]]:
    """Hold Ctrl-C back until a ``unit`` is complete, since half of one cannot be saved; a second one interrupts."""
    asked = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        if not in_worker():
            console().print(f"interrupted: finishing this {unit} and saving it; press Ctrl-C again to stop at once")

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, previous)
