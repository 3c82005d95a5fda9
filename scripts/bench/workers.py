"""Measures what LIBERO's workers cost and bring: two against one, and one against the bare package.

``python scripts/bench.py workers --steps 200`` needs ``worldrl setup libero``. Ratios are of one run on one machine: the
ways take turns, a block of steps each, so that a busy moment hits them alike. Time by the clock says little where
other programs share the cores, and two workers need two of them; ``cpu_ms_per_step`` counts processor time of all
processes that take part, and holds on a busy machine too.

* ``bare``: hf-libero's environment as it comes, stepped by a program of its own in LIBERO's Python, nothing of worldrl
  in the loop.
* ``two_bare``: two such programs at once, neither waiting for the other: what two cores give at best.
* ``one``: the same task behind one worker.
* ``two``: two environments behind two workers, stepped together; its rate counts both.

``--chunk L`` sends L actions in one message, as an evaluation does of a policy's chunk. Cameras are drawn behind the last of
them, which is what the policy is shown next; the bare program draws as often.

All play the same stored state with the same actions, and at the end their robots must be in the same place to the bit.
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.turns import options, tell
from worldrl.rollout.suites.libero import libero_launch
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.link import boot

BARE = """
import json, sys, time
import numpy as np
from worldrl.workers.libero.worker import Libero
from worldrl.workers.libero.facts import CAMERAS
from worldrl.workers.libero.observation import OBSERVED, state_vector
chunk = int(sys.argv[2])
suite = Libero(**json.loads(sys.argv[1]))
simulation = suite.make(suite.describe()["tasks"][0]["name"])
env = simulation.env  # the vendor's environment itself
for name in env.env.observation_names.difference(OBSERVED):
    env.env.modify_observable(name, "enabled", True)  # as it comes
simulation.reset(0, 0, render=False)
obs, size = simulation.obs, suite.image_size
for line in sys.stdin:
    actions = np.random.default_rng(0).uniform(-1, 1, (int(line), 7)).astype(np.float32).astype(np.float64)
    began, used = time.perf_counter(), time.process_time()
    for number, action in enumerate(actions, 1):
        obs = env.step(action)[0]
        for camera in suite.cameras if number % chunk == 0 else ():
            env.sim.render(camera_name=CAMERAS[camera], width=size, height=size)[::-1, ::-1].copy()
    row = [time.perf_counter() - began, time.process_time() - used, *state_vector(obs).tolist()]
    sys.stdout.write(json.dumps({"bare": row}) + "\\n"); sys.stdout.flush()
"""
"""Runs in LIBERO's environment; each line on its input asks for a block of steps."""

Times = tuple[float, float, float]
"""Seconds per step: by the clock, of processor time in simulating processes, and in this one."""


class Program:
    """The package without a worker around it, drawing after every ``chunk`` steps."""

    def __init__(self, launch: Launch, chunk: int) -> None:
        loader = (
            f"import sys; sys.path.insert(0, {os.path.dirname(boot.__file__)!r}); import boot; "
            "sys.path.pop(0); "  # or workers/libero.py would be taken for the package of that name
            "boot.load_file('worldrl', boot.PACKAGE / '__init__.py', package=True); "
            f"exec(compile({BARE!r}, 'bare', 'exec'))"
        )
        self.child = subprocess.Popen(
            [launch.python, "-I", "-c", loader, json.dumps(launch.options), str(chunk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **launch.variables},
        )

    def begin(self, steps: int) -> None:
        """Let it take a block of steps."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{steps}\n")
        self.child.stdin.flush()

    def end(self) -> list[float]:
        """Wait for the block: seconds by the clock, of processor time, and the state it ends in."""
        assert self.child.stdout is not None
        while line := self.child.stdout.readline():
            if line.startswith('{"bare"'):  # the package prints other things
                return json.loads(line)["bare"]
        raise SystemExit("workers: the bare program ended; run it by hand to see why")

    def close(self) -> None:
        """End the program."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


class Bare:
    """Programs that step at the same time."""

    def __init__(self, programs: list[Program]) -> None:
        self.programs = programs
        self.state: list[float] = []

    def block(self, steps: int) -> Times:
        """Take a block of steps in each."""
        for program in self.programs:
            program.begin(steps)
        clock, used, *states = zip(*(program.end() for program in self.programs), strict=True)
        self.state = [values[0] for values in states]
        count = len(self.programs)
        return statistics.mean(clock) / steps / count, statistics.mean(used) / steps, 0.0


class Workers:
    """Environments behind workers."""

    def __init__(self, pool: SimulatorPool, *, pictures: bool, chunk: int) -> None:
        self.pool, self.drawn, self.chunk = pool, None if pictures else (), chunk
        task = pool.suite["tasks"][0]["name"]
        pool.reset({slot: Start(task, 0, 0) for slot in range(pool.slots)}, render=False)
        self.state: list[float] = []

    def used_s(self) -> float:
        """Processor time of the workers, all threads (s)."""
        tasks = [task for pid in self.pool.pids for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def block(self, steps: int) -> Times:
        """Take a block of steps in all slots together."""
        actions = np.random.default_rng(0).uniform(-1, 1, (steps, 7)).astype(np.float32)
        count, rows = steps * self.pool.slots, {}
        began, used, own = time.perf_counter(), self.used_s(), time.process_time()
        for at in range(0, steps, self.chunk):
            sent = actions[at : at + self.chunk]
            rows = self.pool.steps(dict.fromkeys(range(self.pool.slots), sent), render=self.drawn)
            if any(len(taken) < len(sent) for taken in rows.values()):
                raise SystemExit(
                    "workers: a random action solved the task, which ends a chunk early; take another suite"
                )
        passed = (time.perf_counter() - began, self.used_s() - used, time.process_time() - own)
        self.state = rows[0][-1]["state"].tolist()
        return passed[0] / count, passed[1] / count, passed[2] / count


def measure(ways: dict[str, Any], blocks: int, size: int) -> dict[str, list[float]]:
    """Medians over the blocks, milliseconds per step of one environment: by the clock, of simulators, of the core."""
    seconds: dict[str, list[Times]] = {name: [] for name in ways}
    for way in ways.values():
        way.block(size)
    for _ in range(blocks):
        for name, way in ways.items():
            seconds[name].append(way.block(size))
    ends = {name: way.state for name, way in ways.items()}
    if any(state != ends["bare"] for state in ends.values()):
        raise SystemExit(f"workers: the ways did not do the same; their robots end at {ends}")
    return {name: [1000 * statistics.median(part) for part in zip(*v, strict=True)] for name, v in seconds.items()}


def report(ms: dict[str, list[float]]) -> dict[str, Any]:
    """Put together what is printed."""
    clock, used = ({name: value[0] for name, value in ms.items()}, {name: sum(v[1:]) for name, v in ms.items()})
    return {
        "ms_per_step": {name: round(value, 3) for name, value in clock.items()},
        "cpu_ms_per_step": {name: round(value, 3) for name, value in used.items()},
        "cpu_ms_per_step_of_the_core": {name: round(value[2], 3) for name, value in ms.items()},
        "two_workers_over_one": round(clock["one"] / clock["two"], 3),
        "two_bare_over_one": round(clock["bare"] / clock["two_bare"], 3),
        "one_worker_over_bare": round(clock["one"] / clock["bare"], 3),
        "one_worker_over_bare_cpu": round(used["one"] / used["bare"], 3),
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = options("workers", __doc__)
    parser.add_argument("--suite", default="libero_spatial", choices=libero_facts.SUITES)
    parser.add_argument("--steps", type=int, default=200, help="steps of each way in all")
    parser.add_argument("--blocks", type=int, default=10, help="into how many turns they are divided, after one more")
    parser.add_argument(
        "--cameras", nargs="*", default=[], choices=libero_facts.CAMERAS, help="drawn behind each message"
    )
    parser.add_argument("--chunk", type=int, default=1, help="actions in one message; divides each turn's steps")
    given = parser.parse_args(argv)
    size = max(1, given.steps // given.blocks)
    if given.chunk < 1 or size % given.chunk:
        parser.error(f"--chunk must divide the {size} steps of a turn (--steps / --blocks)")
    launch = libero_launch(given.suite, cameras=given.cameras)
    with ExitStack() as stack:
        pools = [
            stack.enter_context(SimulatorPool(launch, workers=count, slots=count, timeout_s=900.0)) for count in (1, 2)
        ]
        programs = [Program(launch, given.chunk) for _ in range(3)]
        for program in programs:
            stack.callback(program.close)
        one, two = (Workers(pool, pictures=bool(given.cameras), chunk=given.chunk) for pool in pools)
        ways = {"bare": Bare(programs[:1]), "two_bare": Bare(programs[1:]), "one": one, "two": two}
        found = report(measure(ways, given.blocks, size))
    about = {"suite": given.suite, "cameras": given.cameras, "steps": size * given.blocks, "chunk": given.chunk}
    tell(given, {**about, **found})
    return 0
