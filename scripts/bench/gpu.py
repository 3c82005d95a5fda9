"""Frames per second, share of the arithmetic rate and peak memory of world models on a GPU, over batches until memory ends.

    python scripts/bench.py gpu                                  everything, to bench_gpu.json and, as a table, bench_gpu.md
    python scripts/bench.py gpu --models gpu --batches 1 64      some models, some batches
    python scripts/bench.py gpu --device cpu --size tiny         the same functions on tiny geometries, to see that they run

Models are the gpu preset's and published Wan geometries in the wan preset's layout, all with random weights: nothing is downloaded.
Each row is measured (``gpu_rows``) in a process of its own, so that the one that finds no memory ends alone, and is a line of the
table; where one finds no memory, larger batches of the same work are left out.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.gpu_rows import MEASURED, NO_MEMORY, SIZES, WORKS, Row, measure
from bench.turns import options, tell
from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.storage.atomic import write_file
from worldrl.evaluation.report.tables import markdown

BATCHES = tuple(2**k for k in range(13))
MEASURES = ("frames/s", "s per chunk or step", "TFLOP", "anchor, TFLOP/s", "share", "peak memory, GB")
HEAD = ("model", "work", "batch", *MEASURES)
BENCH = Path(__file__).parents[1] / "bench.py"


def in_a_process(row: Row) -> dict[str, Any]:
    """Measure one row in a process of its own."""
    asked = [sys.executable, str(BENCH), "gpu", "--row", json.dumps(asdict(row))]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False)
    return {**asdict(row), **outcome(ended.returncode, ended.stdout, ended.stderr)}


def outcome(returncode: int, stdout: str, stderr: str) -> dict[str, Any]:
    """What became of a row's process: its result, no memory left on the host either, or its error."""
    if returncode == 0:
        return json.loads(stdout.splitlines()[-1])
    if returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return {"status": f"{NO_MEMORY} (killed: the host's memory)"}
    return {"status": "failed", "error": "\n".join(stderr.splitlines()[-5:])}


def cells(found: dict[str, Any]) -> tuple[Any, ...]:
    """One line of the table."""
    head = (found["model"], found["work"], found["batch"])
    if found["status"] != MEASURED:
        return *head, found["status"], *[""] * 5
    numbers = (found["frames_per_s"], found["seconds"], found["gflop"] / 1e3, found["anchor"]["gflops"] / 1e3)
    last = (f"{found['share_of_anchor']:.0%}", f"{found['peak_memory_mb'] / 1e3:.3g}")
    return *head, *(f"{x:.3g}" for x in numbers), *last


def sweep(rows: Sequence[Row], run: Callable[[Row], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the same work at growing batches, until one does not come through."""
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(run(row))
        print(*cells(found[-1]), sep=" | ", file=sys.stderr, flush=True)
        if found[-1]["status"] != MEASURED:
            break
    return found


def card(device: torch.device) -> dict[str, Any]:
    """What ran."""
    if device.type != "cuda":
        return {"device": str(device)}
    facts = torch.cuda.get_device_properties(device)
    named = {"name": facts.name, "memory_gb": facts.total_memory / 1e9, "cuda": torch.version.cuda}
    return {"device": str(device), **named}


def main(argv: Sequence[str], run: Callable[[Row], dict[str, Any]] = in_a_process) -> int:
    """Measure everything; return 0, 1 where a row failed with memory left, 2 where the device is missing."""
    parser = options("gpu", __doc__)
    parser.set_defaults(json=Path("bench_gpu.json"))
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: geometries that run anywhere")
    parser.add_argument("--models", nargs="+", choices=WORKS, default=list(WORKS), help="which models")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="growing, until memory ends")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, or auto for the faster one")
    parser.add_argument("--repetitions", type=int, default=10, help="chunks or steps timed of each row")
    parser.add_argument("--row", type=json.loads, help="one row as JSON, measured in this process; used by the sweep")
    given = parser.parse_args(argv)
    if given.row is not None:
        print(json.dumps(measure(Row(**given.row))))
        return 0
    try:
        device = resolve_device(given.device)
    except SettingError as error:
        print(f"bench.py gpu: {error} (--device cpu --size tiny tries the script without)", file=sys.stderr)
        return 2
    settings = (given.device, given.size, given.dtype, given.repetitions)
    works = [(model, work) for model in given.models for work in WORKS[model]]
    rows = [found for on in works for found in sweep([Row(*on, batch, *settings) for batch in given.batches], run)]
    table = markdown(HEAD, [cells(row) for row in rows]) + "\n"
    print(table, end="")
    write_file(given.json.with_suffix(".md"), table.encode())
    tell(given, {"card": card(device), "size": given.size, "results": rows})
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print(f"{row['model']}, {row['work']}, batch {row['batch']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0
