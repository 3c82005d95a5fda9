"""Seconds of work that may be killed and continue."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.jsonfile import read_record, write_json

EVERY_S = 1.0  # Least seconds between two marks that are written


class Stopwatch:
    """Wall and processor seconds, kept in a JSON file at every mark, and added to after a kill, repeats included."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.before = asdict(read_spent(file)) if file.exists() else dict.fromkeys(_clocks(), 0.0)
        self.began = self.written = _clocks()

    def mark(self, *, now: bool = False) -> None:
        """Write what it has been so far; at once (``now``), or unless the last mark is fresh."""
        clocks = _clocks()
        if now or clocks["seconds"] - self.written["seconds"] >= EVERY_S:
            write_json(self.file, {name: self.before[name] + clocks[name] - self.began[name] for name in clocks})
            self.written = clocks


@dataclass(frozen=True)
class Timing:
    """What the file of a stopwatch holds, in seconds."""

    seconds: float
    cpu_seconds: float


def read_spent(file: Path) -> Timing:
    """Read the file of a stopwatch; RunDirectoryError where it is damaged."""
    return read_record(file, Timing, error=RunDirectoryError, mend=f"delete {file.parent} and give the command again")


def _clocks() -> dict[str, float]:
    return {"seconds": time.monotonic(), "cpu_seconds": time.process_time()}
