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
    """One headline number, for example ``Number("Wall time", 14.2, "min")``.

    Attributes:
        name: what it is.
        value: a number or ready text; None where it was not measured.
        unit: shown after the value.
        imagined: measured inside the world model; the page says so.
        note: a few words under it.
    """

    name: str
    value: float | int | str | None
    unit: str = ""
    imagined: bool = False
    note: str = ""


@dataclass(frozen=True)
class SuccessRow:
    """Real success of one task (or of all, or of one seed) before and after.

    Attributes:
        task: name of the task, or of the group.
        kind: LIBERO's kind of task, or empty.
        before: rate before, or None.
        after: rate after, or None.
        paired: the paired comparison, ``a`` before and ``b`` after, or None.
    """

    task: str
    kind: str = ""
    before: Rate | None = None
    after: Rate | None = None
    paired: Paired | None = None

    def __post_init__(self) -> None:
        """Check the numbers against one another."""
        for name, rate in (("before", self.before), ("after", self.after)):
            if rate is not None:
                check_rate(f"{self.task}, {name}", rate)
        if self.paired is not None:
            check_paired(f"{self.task}, paired", self.paired, self.before, self.after)


@dataclass(frozen=True)
class ImaginedReal:
    """One policy's success in imagination beside its success in the simulator.

    Attributes:
        label: for example ``"round 1"``.
        imagined: rate in imagination, or None.
        real: rate in the simulator, or None.
    """

    label: str
    imagined: Rate | None = None
    real: Rate | None = None

    def __post_init__(self) -> None:
        """Check both rates."""
        for name, rate in (("imagined", self.imagined), ("real", self.real)):
            if rate is not None:
                check_rate(f"{self.label}, {name}", rate)


@dataclass(frozen=True)
class Curve:
    """One chart of lines.

    Attributes:
        title: heading of the chart.
        x_label: what the horizontal axis counts.
        y_label: what the vertical axis measures, with its unit.
        series: name to ``[(x, y), …]``; a y of None or NaN leaves a gap.
        bands: name to ``[(x, lo, hi), …]`` for any of the series.
        imagined: names of the series that were measured in imagination; drawn dashed and labelled so.
        percent: y is a fraction to be shown as 0 to 100 %.
        places: names of x = 1, 2, …, where these are not numbers but things side by side; no line joins them then.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Point]]
    bands: Mapping[str, Sequence[BandPoint]] = field(default_factory=dict)
    imagined: Sequence[str] = ()
    percent: bool = False
    places: Sequence[str] = ()

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
    """One validation gate.

    Attributes:
        name: for example ``"Action sensitivity"``.
        value: the measured number, None where it could not be measured.
        threshold: what it is held against.
        passed: the gate's own decision; None where it was not measured.
        meaning: one sentence, what the number says.
        advice: what to do when it fails.
        direction: ``"at_least"`` or ``"at_most"``.
        lo: lower end of the value's 95 % interval, where it is a rate.
        hi: its upper end.
    """

    name: str
    value: float | None
    threshold: float
    passed: bool | None
    meaning: str = ""
    advice: str = ""
    direction: Literal["at_least", "at_most"] = "at_least"
    lo: float | None = None
    hi: float | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown direction."""
        if self.direction not in DIRECTIONS:
            raise ArtefactError(f"gate {self.name!r}: direction must be one of {DIRECTIONS}, got {self.direction!r}")


@dataclass(frozen=True)
class Table:
    """One table of ready texts, for measurements that have no section of their own.

    Attributes:
        title: heading.
        headers: one per column.
        rows: cells; the first names its row.
        note: one sentence under the heading.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse rows of another width than the headers."""
        if any(len(row) != len(self.headers) for row in self.rows):
            raise ArtefactError(f"table {self.title!r}: every row needs {len(self.headers)} cells, one per header")


@dataclass(frozen=True, eq=False)
class Filmstrip:
    """Rows of frames aligned in time, usually real above imagined.

    Attributes:
        title: for example ``"PickRedCube, initial state 12"``.
        caption: one sentence.
        rows: name to uint8 ``[T, Y, X, 3]``, in drawing order; a row may be shorter than ``labels``.
        labels: one text per time step, for example ``"step 8"``.
    """

    title: str
    caption: str
    rows: Mapping[str, Frames]
    labels: Sequence[str]

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
    """One mp4.

    Attributes:
        title: heading.
        caption: one sentence.
        mp4: the file's bytes (H.264, so that browsers play it).
    """

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
    """Everything on the page. Only ``title`` is required: what is missing is named on the page as not measured.

    Attributes:
        title: name of the run.
        sentence: the page's first sentence where no policies were compared; empty generates the verdict.
        sections: keys of the page's sections, in order (``page.SECTIONS``); empty takes those of a policy's page.
        overall: real success over all tasks; the verdict is generated from its paired interval alone.
        tasks: real success per task.
        per_seed: real success per training seed, where several runs are reported together.
        headline: further numbers for the first screen.
        imagined_real: imagined beside real success, in the order of training.
        tables: further measurements.
        curves: charts of lines.
        gates: validation gates.
        filmstrips: rows of frames.
        videos: mp4s.
        stages: wall time per stage.
        data_budget: real episodes and their use.
        seeds: every seed that the numbers rest on.
        configuration: the composed configuration.
        versions: package versions.
        provenance: command, hashes, commit, device, in reading order.
        notes: limits and remarks, one sentence each.
    """

    title: str
    sentence: str = ""
    sections: Sequence[str] = ()
    overall: SuccessRow | None = None
    tasks: Sequence[SuccessRow] = ()
    per_seed: Sequence[SuccessRow] = ()
    headline: Sequence[Number] = ()
    imagined_real: Sequence[ImaginedReal] = ()
    tables: Sequence[Table] = ()
    curves: Sequence[Curve] = ()
    gates: Sequence[Gate] = ()
    filmstrips: Sequence[Filmstrip] = ()
    videos: Sequence[Video] = ()
    stages: Sequence[Stage] = ()
    data_budget: Sequence[DataUse] = ()
    seeds: Sequence[int] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
