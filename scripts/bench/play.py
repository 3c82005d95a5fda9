"""Measures `worldrl play`: from a command to the images of its chunk, over the websocket, in a server of its own.

python scripts/bench.py play --chunks 100 --note "shared machine"

The client asks for the next chunk as soon as it has one. Time on the clock says what a driver waits for on this machine
now. CPU time of the server per chunk says what a machine without neighbours needs, at the most.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from bench.turns import options, tell
from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.recipes.local_server import EXTRA

WARM_UP = 5  # chunks
WAIT_S = 300  # of one answer
COMMANDS = ([0, 0.15, 0, 0, 0, 0, -1], [0, -0.15, 0, 0, 0, 0, -1])
"""To the left and back, so that the arm stays in its workspace."""


@contextmanager
def server(world_model: str) -> Generator[tuple[int, int]]:
    """Start `worldrl play`; gives its process id and port."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "worldrl", "play", f"world_model={world_model}", f"run_dir={folder}/run"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            said = cast("IO[str]", process.stderr)
            try:
                found = None
                while found is None and (line := said.readline()):
                    found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
                if found is None:
                    raise WorldrlError("play: the server ended before it listened")
                yield process.pid, int(found[1])
            finally:
                process.kill()


def cpu_s(process: int) -> float:
    """CPU time of a process so far, all threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(world_model: str, chunks: int) -> dict[str, Any]:
    """Drive so many chunks; returns milliseconds and frames per second of both views together."""
    connect = require("websockets.sync.client", extra=EXTRA).connect
    trips, before, cpu_before = [], 0.0, 0.0
    with server(world_model) as (process, port), connect(f"ws://127.0.0.1:{port}/drive", max_size=None) as client:
        hello = json.loads(client.recv(timeout=WAIT_S))
        client.send(json.dumps({"do": "start", "task": hello["tasks"][0]["name"], "index": 0}))
        client.recv(timeout=WAIT_S)
        for number in range(WARM_UP + chunks):
            if number == WARM_UP:
                cpu_before, before = cpu_s(process), time.perf_counter()
            began = time.perf_counter()
            client.send(json.dumps({"do": "drive", "action": COMMANDS[number // 8 % 2]}))
            if isinstance(answer := client.recv(timeout=WAIT_S), str):
                raise WorldrlError(f"play: {answer}")
            trips.append(1000 * (time.perf_counter() - began))
        wall, cpu = time.perf_counter() - before, cpu_s(process) - cpu_before
    shares = {f"p{share}": round(float(np.percentile(trips[WARM_UP:], share)), 1) for share in (5, 50, 95)}
    return {
        "chunks": chunks,
        "command_to_images_ms": shares,
        "cpu_ms_per_chunk": round(1000 * cpu / chunks, 1),
        "frames_per_s_of_each_view": round(chunks * hello["chunkFrames"] / wall, 1),
    }


def main(argv: Sequence[str]) -> int:
    """Measure one world model."""
    parser = options("play", __doc__)
    parser.add_argument("--world-model", default="bundled", help="bundled, or a folder")
    parser.add_argument("--chunks", type=int, default=100, help="chunks that are driven")
    given = parser.parse_args(argv)
    tell(given, {"play": measure(given.world_model, given.chunks)})
    return 0
