"""Measures what the checks of data sets cost: CPU time of reading, against the code of an earlier version.

git worktree add ../before 0a3c6f1
python scripts/bench.py reading --before ../before --data runs/collect/dataset hopper.hdf5

Each version has a process of its own with one thread; they take turns, and every round reads the whole data set again.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from bench.turns import options, ratio, tell
from worldrl.core.errors import WorldrlError

HERE = Path(__file__).resolve()


def start(code: Path, data: str) -> subprocess.Popen[str]:
    """A process that reads with the code of one checkout."""
    env = os.environ | {"PYTHONPATH": f"{code}{os.pathsep}{code / 'envs'}", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(HERE.with_name("read_once.py")), data]
    return subprocess.Popen(words, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def once(process: subprocess.Popen[str]) -> float:
    """Read the data set once; CPU seconds of the process."""
    said, ask = cast("IO[str]", process.stdout), cast("IO[str]", process.stdin)
    ask.write("\n")
    ask.flush()
    while (line := said.readline()) and not line.startswith("seconds "):
        pass  # what the versions print about a data set
    if not line:
        raise WorldrlError(f"{process.args}: ended with {process.wait(timeout=60)} instead of reading")
    return float(line.split()[1])


def compare(data: str, before: Path, rounds: int) -> dict[str, Any]:
    """Let both versions take turns, after one reading each that does not count; their ratio is ours to theirs."""
    made = [start(before.resolve(), data), start(HERE.parents[2], data)]
    try:
        taken = [[once(process) for process in made] for _ in range(rounds + 1)][1:]
    finally:
        for process in made:
            process.terminate()
            process.wait(timeout=60)
    theirs, ours = map(list, zip(*taken, strict=True))
    return {"data": data, "before_s": theirs, "now_s": ours, "now_to_before": ratio(ours, theirs)}


def main(argv: Sequence[str]) -> int:
    """Measure each data set."""
    parser = options("reading", __doc__, rounds=15)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the earlier version")
    parser.add_argument("--data", nargs="+", required=True, help="folders or files")
    given = parser.parse_args(argv)
    tell(given, {"reading": [compare(data, given.before, given.rounds) for data in given.data]})
    return 0
