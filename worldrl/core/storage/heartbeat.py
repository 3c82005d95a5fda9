"""A thread that notes a run's wall time and memory while the main thread works or waits for workers."""

import threading
from typing import Self

from worldrl.core.storage.run import TICK_EVERY_S, RunDirectory


class Heartbeat:
    """Calls ``run.tick`` inside a ``with`` block; workers count towards the peak memory as often."""

    def __init__(self, run: RunDirectory, every_s: float = TICK_EVERY_S) -> None:
        self._run, self._every_s = run, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="worldrl-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            self._run.tick(force=True)
