"""What a run reports: scalars to ``metrics.jsonl`` (one line per series and step) and a tracker, and progress."""

import io
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.segment import Segment
from rich.text import Text

from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.atomic import disk_errors, open_to_append, write_file
from worldrl.core.storage.jsonfile import parse_json
from worldrl.core.visible import visible

WORKER_VARIABLE = "WORLDRL_WORKER"  # Set (to anything) in processes that must not draw progress
QUIET_S = 2.0
LINE_EVERY_S = 60.0


class _VisibleConsole(Console):
    """A console on which no text of a file steers the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments; rich's own steering is marked as control."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


@cache
def console() -> Console:
    """Return the console shared by everything that talks to a person; it writes to standard error."""
    return _VisibleConsole(stderr=True)


class TrackerName(StrEnum):
    """Where curves are shown."""

    tensorboard = "tensorboard"
    wandb = "wandb"
    trackio = "trackio"
    none = "none"


class MetricLog:
    """Scalars of a run, to ``metrics.jsonl`` and a tracker; RunDirectoryError, or what :func:`open_tracker` raises."""

    def __init__(self, run_folder: Path, tracker: TrackerName = TrackerName.tensorboard) -> None:
        from worldrl.core.storage.trackers import open_tracker  # commands without curves need none

        self.path = run_folder / "metrics.jsonl"
        run_folder.mkdir(parents=True, exist_ok=True)
        self._drop(lambda line: False)  # a kill may have left half a line
        self._tracker = open_tracker(tracker, run_folder, lambda: read_metrics(run_folder))
        self._stream = self._open()

    def write(self, series: str, step: int, values: Mapping[str, Any]) -> None:
        """Record a step's scalars (numbers or 0-d tensors; NaN and infinity become null); steps count up."""
        numbers = {name: _number(value) for name, value in values.items()}
        line = json.dumps({"series": series, "step": step, "values": numbers}, allow_nan=False)
        with disk_errors(self.path, needed=len(line), error=RunDirectoryError):
            self._stream.write(line + "\n")
        self._tracker.write(series, step, {name: x for name, x in numbers.items() if x is not None})

    def truncate(self, series: str, step: int) -> None:
        """Forget the steps from ``step`` on of a series and of its sub-series (``series/...``)."""
        from worldrl.core.storage.trackers import belongs

        self._stream.close()
        self._drop(lambda line: belongs(line["series"], series) and line["step"] >= step)
        self._stream = self._open()
        self._tracker.truncate(series, step)

    def flush(self) -> None:
        """Bring every line to the disk, so that a checkpoint never knows more steps than the log."""
        with disk_errors(self.path, needed=0, error=RunDirectoryError):
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._tracker.flush()

    def close(self) -> None:
        """Flush and close all files."""
        if not self._stream.closed:
            self.flush()
            self._stream.close()
        self._tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        with disk_errors(self.path, needed=0, error=RunDirectoryError):
            return io.TextIOWrapper(open_to_append(self.path), encoding="utf-8", line_buffering=True)

    def _drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        """Rewrite the file without the unwanted lines and without a last line that was cut short."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        kept = b"".join(line for line in whole if not unwanted(_parse(line, self.path)))
        if kept != data:
            write_file(self.path, kept)


def read_metrics(run_folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` in order, none without a file; RunDirectoryError for a damaged one."""
    path = run_folder / "metrics.jsonl"
    if not path.exists():
        return []
    data = path.read_bytes()
    return [_parse(line, path) for line in data[: data.rfind(b"\n") + 1].splitlines()]


_OPEN: list["Progress"] = []


def current_progress() -> dict[str, Any] | None:
    """What this process does now, the innermost: its ``description``, ``count``, ``total`` and ``unit``."""
    shown = _OPEN[-1:]  # one look, since another thread may end it
    return {name: getattr(shown[0], name) for name in ("description", "count", "total", "unit")} if shown else None


class Progress:
    """Shows how far something is, how fast it goes and how long it will take; ``start`` units were done before.

    On a terminal a bar; otherwise a plain line after two seconds, then one a minute, and one at the end. Nothing for
    what ends within two seconds without a terminal, and nothing in worker processes.
    """

    def __init__(
        self,
        description: str,
        total: int,
        *,
        start: int = 0,
        unit: str = "steps",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.count = self._first = start
        self._clock = clock
        self._began = self._spoke = clock()
        self._silent = in_worker()
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        self._began = self._spoke = self._clock()
        _OPEN.append(self)
        if not self._silent and console().is_terminal:
            self._bar = _add_bar(self.description, self.total, self.count)
        return self

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count ``amount`` more units; ``note`` is shown behind the numbers."""
        self.count += amount
        if self._bar is not None:
            _bars().update(self._bar, completed=self.count, note=note)
        elif not self._silent:
            self._maybe_speak(note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _OPEN.remove(self)
        if self._bar is not None:
            _remove_bar(self._bar)
        if not self._silent and self._clock() - self._began >= QUIET_S:
            end = "finished" if kind is None else f"stopped by {kind.__name__}"
            self._speak(f"{end} after {_duration(self._clock() - self._began)}")

    def _maybe_speak(self, note: str) -> None:
        now = self._clock()
        wait = QUIET_S if self._spoke == self._began else LINE_EVERY_S
        if now - self._spoke >= wait:
            self._spoke = now
            self._speak(note)

    def _speak(self, note: str) -> None:
        rate = (self.count - self._first) / max(self._clock() - self._began, 1e-9)
        left = f", {_duration((self.total - self.count) / rate)} left" if rate > 0 and self.count < self.total else ""
        text = f"{self.description}: {self.count}/{self.total} {self.unit}, {rate:.3g}/s{left}"
        console().print(f"{text}, {note}" if note else text, highlight=False, markup=False, soft_wrap=True)


def in_worker() -> bool:
    """Whether this process is a worker, which keeps silent."""
    return multiprocessing.parent_process() is not None or WORKER_VARIABLE in os.environ


@cache
def _bars() -> Bars:
    """The one live display: nested progress adds a line to it."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console(),
        transient=True,
    )


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.3g}/s" if task.speed else "")


def _add_bar(description: str, total: int, count: int) -> TaskID:
    bars = _bars()
    if not bars.task_ids:
        bars.start()
    return bars.add_task(description, total=total, completed=count, note="")


def _remove_bar(bar: TaskID) -> None:
    bars = _bars()
    bars.remove_task(bar)
    if not bars.task_ids:
        bars.stop()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _parse(line: bytes, path: Path) -> dict[str, Any]:
    return parse_json(line, path=path, error=RunDirectoryError)
