"""Frames per second, share of the arithmetic rate and peak memory of world models on a GPU, over batches until memory ends.

    python scripts/bench_gpu.py                                  everything, to bench_gpu.json and, as a table, bench_gpu.md
    python scripts/bench_gpu.py --models gpu --batches 1 64      some models, some batches
    python scripts/bench_gpu.py --device cpu --size tiny         the same functions on tiny geometries, to see that they run

Models are the gpu preset's and published Wan geometries in the wan preset's layout, all with random weights: nothing is downloaded.
Here is the sweep: each row is measured (``bench_gpu_measure.py``) in a process of its own (``bench_gpu_children.py``) and is a line of
the table (``bench_gpu_table.py``); where one finds no memory, larger batches of the same work are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_gpu_children import in_a_process
from bench_gpu_measure import MEASURED, SIZES, WORKS, Row
from bench_gpu_table import HEAD, line

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.storage.atomic import write_file

BATCHES = tuple(2**k for k in range(13))


def sweep(rows: Sequence[Row], run: Callable[[Row], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the same work at growing batches, until one does not come through."""
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(run(row))
        print(line(found[-1]), flush=True)
        if found[-1]["status"] != MEASURED:
            break
    return found


def machine(device: torch.device) -> dict[str, Any]:
    """What ran."""
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(device)}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {"name": card.name, "memory_gb": card.total_memory / 1e9, "cuda": torch.version.cuda}
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: geometries that run anywhere")
    parser.add_argument("--models", nargs="+", choices=WORKS, default=list(WORKS), help="which models")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="growing, until memory ends")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, or auto for the faster one")
    parser.add_argument("--repetitions", type=int, default=10, help="chunks or steps timed of each row")
    parser.add_argument("--out", type=Path, default=Path("bench_gpu"), help="result: OUT.json and OUT.md")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, run: Callable[[Row], dict[str, Any]] = in_a_process) -> int:
    """Measure everything, print the table, write both files.

    Returns:
        0, 1 where a row failed otherwise than for want of memory, 2 where the device is missing.
    """
    args = parse(argv)
    try:
        device = resolve_device(args.device)
    except SettingError as error:
        print(f"bench_gpu: {error} (--device cpu --size tiny tries the script without)", file=sys.stderr)
        return 2
    print("\n".join(HEAD))
    rows: list[dict[str, Any]] = []
    for model in args.models:
        for work in WORKS[model]:
            same = [
                Row(model, work, batch, args.device, args.size, args.dtype, args.repetitions) for batch in args.batches
            ]
            rows += sweep(same, run)
    body = {"machine": machine(device), "size": args.size, "results": rows}
    write_file(args.out.with_suffix(".json"), (json.dumps(body, indent=1) + "\n").encode())
    write_file(args.out.with_suffix(".md"), ("\n".join([*HEAD, *map(line, rows)]) + "\n").encode())
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print(f"{row['model']}, {row['work']}, batch {row['batch']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
