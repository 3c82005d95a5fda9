"""A process of its own for each row of ``bench_gpu.py``, so that the one that finds no memory ends alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bench_gpu_measure
from bench_gpu_measure import NO_MEMORY, Row


def in_a_process(row: Row) -> dict[str, Any]:
    """Measure one row in a process of its own."""
    asked = [sys.executable, str(Path(bench_gpu_measure.__file__)), json.dumps(asdict(row))]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False)
    return {**asdict(row), **outcome(ended.returncode, ended.stdout, ended.stderr)}


def outcome(returncode: int, stdout: str, stderr: str) -> dict[str, Any]:
    """What became of a row's process: its result, no memory left on the host either, or its error."""
    if returncode == 0:
        return json.loads(stdout.splitlines()[-1])
    if returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return {"status": f"{NO_MEMORY} (killed: the host's memory)"}
    return {"status": "failed", "error": "\n".join(stderr.splitlines()[-5:])}
