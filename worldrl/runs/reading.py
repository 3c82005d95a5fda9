"""Run directories below a folder as they are now: state, settings, success, films.

Nothing is written, no lock is taken, and no link is followed. A run belongs to whoever made it: a file that is broken,
half-written or of another type becomes a fault of that run, and the rest of it is read all the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from worldrl.core.errors import ArtefactError, RunDirectoryError, WorldrlError
from worldrl.core.storage.below import open_below, read_below
from worldrl.core.storage.jsonfile import parse_json
from worldrl.core.storage.lock import owner_works
from worldrl.core.storage.run import CLOCK, CONFIG, LOCK, RESULT, TICK_EVERY_S, Clock, parsed_config
from worldrl.core.storage.typed import from_plain
from worldrl.evaluation.report.checks import check_paired, check_rate, is_number
from worldrl.evaluation.report.store import FILE as REPORT_DATA
from worldrl.evaluation.report.store import PAGE
from worldrl.evaluation.report.words import flatten

T = TypeVar("T")
METRICS = "metrics.jsonl"
DEEPEST, MOST_RUNS, MOST_FILMS = 5, 2000, 60
MOST_BYTES, MOST_CURVES = 4 * 2**20, 64 * 2**20
"""Bytes that are read of a record, and of the end of ``metrics.jsonl``."""
MOST_NAME = 40
"""Characters of a side's name."""
SILENT_S = 6 * TICK_EVERY_S
"""A run of another machine whose clock is older than this is taken as stopped."""
POINTS = 300
"""Points of a curve at the most."""


class State(StrEnum):
    """What a run is doing."""

    running = "running"
    finished = "finished"
    failed = "failed"
    stopped = "stopped"
    damaged = "damaged"  # it has a result, which cannot be read


@dataclass(frozen=True)
class Film:
    """A film of a run: its path below the run, and what it shows."""

    path: str
    title: str


@dataclass(frozen=True)
class Run:
    """One run directory."""

    name: str  # path below the folder
    command: str
    state: State
    typed: str  # the command line that resumes it
    settings: Mapping[str, str]  # by dotted name
    success: Mapping[str, Mapping[str, Any]]  # rates that were measured in the simulator, by what they are of
    gain: Mapping[str, Any] | None  # the paired comparison of ``before`` and ``after``
    numbers: Mapping[str, float]  # other numbers of its result
    clock: Clock
    changed_s: float  # when it was last written to, seconds since 1970
    stages: Sequence[str]  # finished ones
    films: Sequence[Film]
    has_report: bool
    has_metrics: bool
    faults: Sequence[str]  # what could not be read


Kept = dict[Path, tuple[tuple[int, ...], Any, str]]
"""Records that were read before: when each was written, its content, and what was wrong with it."""


@dataclass
class _Reader:
    """Reads records of one run, and keeps what was wrong with them."""

    root: Path
    name: str
    kept: Kept
    faults: list[str] = field(default_factory=list)

    def read(self, file: str, parse: Callable[[bytes, Path], T], default: T) -> T:
        """Parse a file, or take ``default`` where there is none, or it is broken."""
        path = self.root / self.name / file
        try:
            found = path.lstat()
        except OSError:
            return default
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if path not in self.kept or self.kept[path][0] != stamp:
            value, fault = default, ""
            try:
                value = parse(read_below(self.root, f"{self.name}/{file}", MOST_BYTES), Path(file))
            except WorldrlError as refusal:
                fault = str(refusal)
            self.kept[path] = stamp, value, fault
        _, value, fault = self.kept[path]
        self.faults += [fault] if fault else []
        return value


def find_runs(folder: Path, kept: Kept | None = None) -> list[Run]:
    """Read every run below a folder, working ones first, then by the time of the last change; ``kept`` saves reading again.

    Raises RunDirectoryError: there is no such folder, or it is itself a run.
    """
    require_folder(folder)
    kept = {} if kept is None else kept
    runs = [read_run(folder, name, kept) for name in islice(_names(folder, "", 0), MOST_RUNS)]
    return sorted(runs, key=lambda run: (run.state is not State.running, -run.changed_s * (run.state is not State.running), run.name))  # fmt: skip


def require_folder(folder: Path) -> None:
    """Raise RunDirectoryError where there is no such folder, or it is itself a run."""
    if not folder.is_dir():
        raise RunDirectoryError(f"folder: {folder} is no folder; give folder=FOLDER, which holds run directories")
    if _is_run(folder):
        raise RunDirectoryError(f"folder: {folder} is itself a run directory; give the folder that holds it")


def _names(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    """Paths of the run directories below ``folder``; what lies inside a run is its own."""
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # it may not be read, or is gone
    for entry in found:
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
            continue
        if _is_run(Path(entry.path)):
            yield f"{prefix}{entry.name}"
        elif depth < DEEPEST:
            yield from _names(Path(entry.path), f"{prefix}{entry.name}/", depth + 1)


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in (CONFIG, CLOCK, RESULT))


def read_run(root: Path, name: str, kept: Kept) -> Run:
    """Read one run directory; whatever is wrong with it becomes one of its faults."""
    reader = _Reader(root, name, kept)
    clock = reader.read(CLOCK, _clock, Clock())
    settings = reader.read(CONFIG, _settings, {})
    result = reader.read(RESULT, _record, {})
    metrics = result.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    success, gain = _success(metrics, reader.faults)
    command = clock.command or str(result.get("command") or "")
    return Run(
        name=name,
        command=command,
        state=_state(root, name, clock, finished=bool(result)),
        typed=clock.resume,
        settings=settings,
        success=success,
        gain=gain,
        numbers={key: value for key, value in metrics.items() if is_number(value)},
        clock=clock,
        changed_s=max((_changed_s(root / name / file) for file in (CLOCK, RESULT, METRICS)), default=0.0),
        stages=_stages(root / name),
        films=_films(reader),
        has_report=_is_file(root / name / PAGE),
        has_metrics=_is_file(root / name / METRICS),
        faults=reader.faults,
    )


def _clock(data: bytes, file: Path) -> Clock:
    return from_plain(Clock, _record(data, file), where=str(file), error=RunDirectoryError, others=True)


def _settings(data: bytes, file: Path) -> dict[str, str]:
    return dict(flatten(parsed_config(data, file)))


def _record(data: bytes, file: Path) -> dict[str, Any]:
    value = parse_json(data, path=file, error=RunDirectoryError)
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def _state(root: Path, name: str, clock: Clock, *, finished: bool) -> State:
    if _works(root, name):
        return State.running
    if finished:
        return State.finished
    if os.path.lexists(root / name / RESULT):
        return State.damaged
    return State.failed if clock.error else State.stopped


def _works(root: Path, name: str) -> bool:
    try:
        with open_below(root, f"{name}/{LOCK}") as lock:
            works = owner_works(lock)
    except RunDirectoryError:
        return False
    return time.time() - _changed_s(root / name / CLOCK) < SILENT_S if works is None else works


def _success(metrics: Mapping[str, Any], faults: list[str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Rates of a result by their names, and the paired comparison of ``before`` and ``after``.

    A result whose sides are no before and after names them under ``sides``.
    """
    found = {key: _rate_in(metrics.get(key)) for key in ("success", "before", "after")}
    rates = {key: rate for key, rate in found.items() if rate is not None}
    within = metrics.get("comparison")
    gain = metrics.get("paired") or (within.get("paired") if isinstance(within, dict) else None)
    try:
        for key, rate in rates.items():
            check_rate(key, rate)
        if gain is not None:
            check_paired("paired", gain, rates.get("before"), rates.get("after"))
    except (ArtefactError, TypeError) as fault:
        faults.append(f"{RESULT}: {fault}")
        return {}, None
    sides = metrics.get("sides")
    names = {key: str(name)[:MOST_NAME] for key, name in sides.items()} if isinstance(sides, dict) else {}
    return {names.get(key, key): rate for key, rate in rates.items()}, gain


def _rate_in(value: Any) -> dict[str, Any] | None:
    """A rate, or the one of an evaluation."""
    if not isinstance(value, dict):
        return None
    return value if "rate" in value else _rate_in(value.get("success"))


def _stages(run: Path) -> list[str]:
    return [name for name in _listed(run / "stages") if _is_file(run / "stages" / name / "stage.json")]


def _films(reader: _Reader) -> list[Film]:
    """Films of a run, with the titles of its report where it has one."""
    folder = reader.root / reader.name / "videos"
    names = [name for name in _listed(folder) if name.endswith(".mp4") and _is_file(folder / name)][:MOST_FILMS]
    titles: dict[str, str] = {}
    if names:
        data = reader.read(REPORT_DATA, _record, {}).get("data")
        videos = data.get("videos") if isinstance(data, dict) else None
        for number, video in enumerate(videos if isinstance(videos, list) else [], 1):
            titles[f"{number:02d}.mp4"] = str(video.get("title", "")) if isinstance(video, dict) else ""
    return [Film(f"videos/{name}", titles.get(name) or name.removesuffix(".mp4")) for name in names]


def _listed(folder: Path) -> list[str]:
    """Names in a folder, none of one that is a link or is not there."""
    try:
        return [] if folder.is_symlink() else sorted(os.listdir(folder))
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _changed_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def read_curves(root: Path, name: str) -> dict[str, Any]:
    """Read a run's curves by ``series/metric``: at most ``POINTS`` points ``[step, value]`` each, the last one kept.

    Returns ``{"curves", "unreadable", "cut"}``: how many lines were no measurements, and whether the file's beginning was
    left out. RunDirectoryError where there is no file, or a link.
    """
    data = read_below(root, f"{name}/{METRICS}", MOST_CURVES, last=True)
    cut = len(data) == MOST_CURVES
    lines = data.split(b"\n")[int(cut) : -1]  # what follows the last newline is being written
    curves: dict[str, list[tuple[int, float]]] = {}
    unreadable = 0
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry["step"])
            for metric, value in entry["values"].items():
                if is_number(value):
                    curves.setdefault(f"{entry['series']}/{metric}", []).append((step, float(value)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            unreadable += 1
    return {"curves": {key: _thinned(points) for key, points in curves.items()}, "unreadable": unreadable, "cut": cut}


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    every = -(-len(points) // POINTS)
    return [*points[:-1:every], points[-1]] if every > 1 else list(points)
