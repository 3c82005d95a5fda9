"""What benchmarks share: options, pinned threads, parts that take turns, ratios with intervals, the machine, JSON."""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.storage.atomic import write_file
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.tables import print_table

BESIDE = Console(width=140, stderr=True)  # Tables for people, beside the numbers


def options(name: str, doc: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Begin the command line of one benchmark; ``rounds`` where parts take turns in this process."""
    made = argparse.ArgumentParser(
        f"bench.py {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, help="where the numbers go; otherwise they are printed")
    made.add_argument("--note", default="", help="a remark kept with the numbers, such as: shared machine")
    if rounds is not None:
        made.add_argument("--threads", type=int, default=1, help="torch threads, pinned to as many processors")
        made.add_argument("--rounds", type=int, default=rounds, help="repetitions of each part")
    return made


def pin(threads: int) -> None:
    """Let torch use ``threads`` threads, and this process as many processors."""
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def tell(given: argparse.Namespace, body: dict[str, Any]) -> None:
    """Write the numbers with the machine and the note, to ``--json`` or to the standard output."""
    machine = {
        "arch": platform.machine(),
        "cores": os.cpu_count(),
        "processors": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "mujoco", "gymnasium")},
    }
    text = json.dumps({"note": given.note, "machine": machine, **body}, indent=1) + "\n"
    if given.json is None:
        sys.stdout.write(text)
    else:
        write_file(given.json, text.encode())


@dataclass(kw_only=True)
class Part:
    """One thing that is measured, in turn with the others."""

    what: str  # the task, the same text for all that do it
    who: str = ""  # the code base, or our way of doing it
    call: Callable[[], object]  # does it once
    units: int = 1  # how many of `unit` one call makes
    unit: str = "calls"  # what is counted
    clock: Callable[[], float] = time.process_time  # tells seconds; CPU time of this process unless a device works
    seconds: list[float] = field(default_factory=list)  # of one call, one per round, by `clock`
    wall: list[float] = field(default_factory=list)  # wall seconds of it

    def measure(self, least: float = 0.0) -> None:
        """Call until ``least`` seconds are over; keep the mean as one repetition."""
        began, wall, calls = self.clock(), time.perf_counter(), 0
        while calls == 0 or self.clock() - began < least:
            self.call()
            calls += 1
        self.seconds.append((self.clock() - began) / calls)
        self.wall.append((time.perf_counter() - wall) / calls)


def take_turns(
    parts: Sequence[Part], rounds: int, *, warm_up: int = 1, least: float = 0.0, budget: float = math.inf
) -> None:
    """Warm every part up, then measure all in turn, ``least`` seconds a repetition.

    A part that has used ``budget`` seconds repeats no more, but at least twice.
    """
    for _ in range(warm_up):
        for part in parts:
            part.call()
    for turn in range(rounds):
        for part in parts:
            if turn < 2 or sum(part.seconds) < budget:
                part.measure(least)


def ratio(seconds: Sequence[float], ours: Sequence[float]) -> dict[str, float | None]:
    """How many times our time another takes, least and median, with its interval over rounds, drawn in pairs."""
    pairs = np.array([*zip(seconds, ours, strict=False)], np.float64)
    found = bootstrap(
        pairs, lambda some: float(np.divide(*np.median(some, axis=0))), generator=numpy_stream(0, "bench", "ratio")
    )
    lo, hi = (None if math.isnan(found[end]) else found[end] for end in ("lo", "hi"))
    return {"least": min(seconds) / min(ours), "median": found["value"], "lo": lo, "hi": hi}


def results(parts: Sequence[Part], ours: str) -> list[dict[str, Any]]:
    """Milliseconds per call, units per second, and how many times the time of the same task by ``ours`` each takes."""
    own = {part.what: part.seconds for part in parts if part.who == ours}
    return [
        {
            "what": part.what,
            "who": part.who,
            "repetitions": len(part.seconds),
            "ms_per_call": {"least": 1e3 * min(part.seconds), "median": 1e3 * statistics.median(part.seconds)},
            "wall_ms_per_call": {"least": 1e3 * min(part.wall), "median": 1e3 * statistics.median(part.wall)},
            "unit": part.unit,
            "units_per_call": part.units,
            "units_per_s": part.units / min(part.seconds),
            f"times_{ours}": ratio(part.seconds, own[part.what]),
        }
        for part in parts
    ]


def show(found: Sequence[dict[str, Any]], ours: str) -> None:
    """Print what :func:`results` returns, beside the numbers."""
    beside = (f"times {ours}, least", "median", "95 % interval")
    headers, rows = ("task", "who", "ms, least (median)", "per second", "n", *beside), []
    for row in found:
        ms, times = row["ms_per_call"], row[f"times_{ours}"]
        interval = "one round" if times["lo"] is None else f"{times['lo']:.2f} to {times['hi']:.2f}"
        spent = f"{ms['least']:.1f} ({ms['median']:.1f})"
        speed = f"{row['units_per_s']:,.0f} {row['unit']}"
        over = (f"{times['least']:.2f}", f"{times['median']:.2f}", interval)
        rows.append((row["what"], row["who"], spent, speed, str(row["repetitions"]), *over))
    print_table(Table("Time per call", headers, rows), BESIDE)
