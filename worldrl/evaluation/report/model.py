"""What a report page holds: plain frozen records, checked when they are made (:mod:`checks`).

Numbers are fractions (0.45), never per cent. A part that was not measured is None or empty, and the page says so.

Shapes legend: ``T`` frames of a strip, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.report.checks import Paired, Rate, check_paired, check_rate

DIRECTIONS = ("at_least", "at_most")

Frames = NDArray[np.uint8]
Point = tuple[float, float]
BandPoint = tuple[float, float, float]


@dataclass(frozen=True)
class Number:
    """One headline number, for example ``Number("Wall time", 14.2, "min")``."""

    name: str
    value: float | int | str | None  # or ready text; None where it was not measured
    unit: str = ""
    imagined: bool = False  # measured inside the world model; the page says so
    note: str = ""  # a few words under it


@dataclass(frozen=True)
class SuccessRow:
    """Real success of one task (or of all, or of one seed) before and after, and their paired comparison."""

    task: str
    kind: str = ""  # LIBERO's kind of task
    before: Rate | None = None
    after: Rate | None = None
    paired: Paired | None = None  # ``a`` is before and ``b`` after

    def __post_init__(self) -> None:
        """Check the numbers against one another."""
        for name, rate in (("before", self.before), ("after", self.after)):
            check_rate(f"{self.task}, {name}", rate)
        if self.paired is not None:
            check_paired(f"{self.task}, paired", self.paired, self.before, self.after)


@dataclass(frozen=True)
class ImaginedReal:
    """One policy's success in imagination beside its success in the simulator."""

    label: str  # for example "round 1"
    imagined: Rate | None = None
    real: Rate | None = None
    paired: Paired | None = None  # of the same actions: ``a`` is real and ``b`` imagined

    def __post_init__(self) -> None:
        """Check both rates."""
        for name, rate in (("imagined", self.imagined), ("real", self.real)):
            check_rate(f"{self.label}, {name}", rate)
        if self.paired is not None:
            check_paired(f"{self.label}, imagined minus real", self.paired, self.real, self.imagined)


@dataclass(frozen=True)
class Curve:
    """One chart of lines, or of dots where ``places`` names what lies side by side instead of along an axis."""

    title: str
    x_label: str
    y_label: str  # with its unit
    series: Mapping[str, Sequence[Point]]  # a y of None or NaN leaves a gap
    bands: Mapping[str, Sequence[BandPoint]] = field(default_factory=dict)  # (x, lo, hi) of any of the series
    imagined: Sequence[str] = ()  # series that were measured in imagination: dashed, and labelled so
    percent: bool = False  # y is a fraction, shown as 0 to 100 %
    places: Sequence[str] = ()  # names of x = 1, 2, …; no line joins them

    def __post_init__(self) -> None:
        """Refuse bands and labels for series that do not exist, and points at places that do not."""
        unknown = sorted((set(self.bands) | set(self.imagined)) - set(self.series))
        if unknown:
            raise ArtefactError(f"curve {self.title!r}: bands and imagined must name series, got {unknown}")
        known = set(range(1, len(self.places) + 1))
        if self.places and (lost := sorted({x for points in self.series.values() for x, _ in points} - known)):
            raise ArtefactError(f"curve {self.title!r}: x must be 1 to {len(self.places)}, the places, got {lost}")


@dataclass(frozen=True)
class Gate:
    """One validation gate; ``value`` and ``passed`` are None where it was not measured."""

    name: str
    value: float | None
    threshold: float
    passed: bool | None  # the gate's own decision
    meaning: str = ""  # one statement: what the number means
    advice: str = ""  # what to do when it fails
    direction: Literal["at_least", "at_most"] = "at_least"
    lo: float | None = None  # ends of the value's 95 % interval, where it is a rate
    hi: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown direction."""
        if self.direction not in DIRECTIONS:
            raise ArtefactError(f"gate {self.name!r}: direction must be one of {DIRECTIONS}, got {self.direction!r}")


@dataclass(frozen=True)
class Table:
    """One table of ready texts; the first cell of a row names it."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""  # one statement under the heading

    def __post_init__(self) -> None:
        """Refuse rows of another width than the headers."""
        if any(len(row) != len(self.headers) for row in self.rows):
            raise ArtefactError(f"table {self.title!r}: every row needs {len(self.headers)} cells, one per header")


@dataclass(frozen=True, eq=False)
class Filmstrip:
    """Rows of frames aligned in time, usually real above imagined."""

    title: str  # for example "PickRedCube, initial state 12"
    caption: str  # one statement
    rows: Mapping[str, Frames]  # uint8 [T, Y, X, 3] by name; a row may be shorter than ``labels``
    labels: Sequence[str]  # one per time step, for example "step 8"

    def __post_init__(self) -> None:
        """Refuse frames of another dtype or layout, and rows of different sizes."""
        for name, frames in self.rows.items():
            if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
                raise ArtefactError(
                    f"filmstrip {self.title!r}, row {name!r}: frames must be uint8 [T, Y, X, 3], "
                    f"got {frames.dtype} {list(frames.shape)}"
                )
        if len({frames.shape[1:3] for frames in self.rows.values()}) != 1:
            raise ArtefactError(f"filmstrip {self.title!r}: needs at least one row, all of one image size")
        if not 0 < max(len(frames) for frames in self.rows.values()) <= len(self.labels):
            raise ArtefactError(
                f"filmstrip {self.title!r}: needs frames, and one label per time step of the longest row"
            )


@dataclass(frozen=True)
class Video:
    """One mp4 (H.264, so that browsers play it)."""

    title: str
    caption: str
    mp4: bytes = field(repr=False)


@dataclass(frozen=True)
class Stage:
    """One stage of the job and the wall time it took, in seconds (None where it did not run)."""

    name: str
    wall_s: float | None
    note: str = ""


@dataclass(frozen=True)
class DataUse:
    """How many real episodes one step used, and what for."""

    what: str
    episodes: int
    use: str


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything on the page. Only ``title`` is required: what is missing is named on the page as not measured."""

    title: str
    sentence: str = ""  # the page's first, where no policies were compared; empty generates the verdict
    imagined: bool = False  # ``sentence`` is of numbers that were measured in imagination only
    sections: Sequence[str] = ()  # keys of ``page.SECTIONS``, in order; empty takes those of a policy's page
    overall: SuccessRow | None = None  # over all tasks; its paired interval alone decides the verdict
    tasks: Sequence[SuccessRow] = ()
    per_seed: Sequence[SuccessRow] = ()  # by training seed, where several runs are reported together
    headline: Sequence[Number] = ()  # further numbers of the first screen
    imagined_real: Sequence[ImaginedReal] = ()  # in the order of training
    tables: Sequence[Table] = ()
    curves: Sequence[Curve] = ()
    gates: Sequence[Gate] = ()
    filmstrips: Sequence[Filmstrip] = ()
    videos: Sequence[Video] = ()
    stages: Sequence[Stage] = ()
    data_budget: Sequence[DataUse] = ()
    seeds: Sequence[int] = ()  # every seed that the numbers rest on
    configuration: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)  # command, hashes, device, in reading order
    notes: Sequence[str] = ()  # limits and remarks, one statement each
