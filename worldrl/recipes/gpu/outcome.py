"""What ``worldrl gpu-check`` measures, as typed records: the schema of its ``gpu_check.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.storage.jsonfile import plain, read_json, write_json
from worldrl.core.storage.typed import from_plain

SCHEMA = 1
FILE = "gpu_check.json"
MEASURED, SKIPPED, FAILED = STATUSES = ("measured", "skipped", "failed")


@dataclass(frozen=True)
class Number:
    """One number: of several repetitions their median, with its 95 % bootstrap interval."""

    value: float
    unit: str
    lo: float | None = None  # of one repetition, and of a count, there is no interval
    hi: float | None = None
    n: int = 1


@dataclass(frozen=True)
class Outcome:
    """What one check came to."""

    name: str
    status: str  # of STATUSES
    seconds: float  # that it took, start of its process included
    budget_s: float  # that it may take
    numbers: dict[str, Number] = field(default_factory=dict[str, Number])
    reason: str = ""  # of a check that was skipped or failed, one line

    def __post_init__(self) -> None:
        """Refuse an outcome that is none: numbers belong to what was measured, a reason to the rest."""
        measured = self.status == MEASURED
        if self.status not in STATUSES or measured != bool(self.numbers) or measured == bool(self.reason):
            raise ArtefactError(
                f"check {self.name}: status {self.status!r} with {len(self.numbers)} numbers, reason {self.reason!r}"
            )


@dataclass(frozen=True)
class Card:
    """What the checks ran on."""

    device: str  # ``cpu`` or ``cuda:N``
    name: str  # of the GPU or the processor
    memory_gb: float | None  # of the GPU
    cuda: str  # that torch was built with; empty for none
    driver: str
    torch: str
    cores: int


@dataclass(frozen=True)
class GpuCheck:
    """The whole file."""

    schema: int
    size: str  # ``full`` or ``tiny``: tiny numbers say that the code runs, and nothing about speed
    card: Card
    checks: tuple[Outcome, ...]

    def __post_init__(self) -> None:
        """Refuse another schema, and two checks of one name."""
        names = [check.name for check in self.checks]
        if self.schema != SCHEMA or len(set(names)) < len(names):
            raise ArtefactError(f"{FILE}: needs schema {SCHEMA} and each check once, got {self.schema} and {names}")


def write_gpu_check(folder: Path, found: GpuCheck) -> Path:
    """Write the file into a run directory, and read it back by its schema."""
    path = folder / FILE
    write_json(path, plain(asdict(found), where=FILE, nonfinite="null", error=ArtefactError), error=ArtefactError)
    read_gpu_check(path)
    return path


def read_gpu_check(path: Path) -> GpuCheck:
    """Read a file of :func:`write_gpu_check`; ArtefactError for a field that is missing, unknown or of another type."""
    return from_plain(GpuCheck, read_json(path, error=ArtefactError), where=str(path), error=ArtefactError)


def outcome_from(value: Any) -> Outcome:
    """Make one outcome from plain JSON values."""
    return from_plain(Outcome, value, where="check", error=ArtefactError)


def median(samples: Sequence[float], unit: str) -> Number:
    """Summarise repetitions."""
    found = bootstrap(
        np.asarray(samples, np.float64),
        lambda drawn: float(np.median(drawn)),
        generator=numpy_stream(0, "gpu-check", "median"),
    )
    lo, hi = (float(found[end]) if len(samples) > 1 else None for end in ("lo", "hi"))
    return Number(found["value"], unit, lo, hi, found["n"])


def rate(amount: float, seconds: Sequence[float], unit: str) -> Number:
    """Summarise what ``amount`` per repetition makes in a second."""
    return median([amount / s for s in seconds], unit)
