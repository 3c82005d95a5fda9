"""Measures ``engine=ray`` beside local processes, on a cluster of two nodes that this program starts on this machine.

``python scripts/bench.py cluster`` needs the extra ``ray``. Parts, chosen by ``--parts``:

* ``pairs``: the same episodes of the embedded suite, local and on Ray in turns; results must be equal to the bit. Ratios
  of time by the clock, whole and after the first result, with 95 % intervals over pairs.
* ``kills``: a node is killed without warning at random moments and another is added, until ``--kills`` are reached;
  the results of the no-op suite must equal the local ones, each episode once. ``embedded-kills``: of the embedded one.
* ``noop``: a suite without physics, ``--simulators`` at once in two workers: milliseconds per episode, and the memory of
  this process and all below it at each tenth of the run.
"""

import contextlib
import dataclasses
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.turns import options, tell
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import LOCAL, Engine, Launch
from worldrl.simulators.ray_engine import RayEngine

PARTS = ("pairs", "noop", "kills", "embedded-kills")
STORE_BYTES = 80 << 20  # Ray's least


class TwoNodes:
    """A head without cores, and two nodes of ``cores`` each, of which one can be killed."""

    def __init__(self, cores: int) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._node = {"num_cpus": cores, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self._nodes = [self._cluster.add_node(**self._node) for _ in range(2)]
        self.engine = RayEngine(self._cluster.address)

    def kill_and_replace(self, number: int) -> None:
        """Kill the processes of a node, and add another."""
        self._cluster.remove_node(self._nodes[number], allow_graceful=False)
        with patch("ray._private.utils.set_sigterm_handler"):  # possible in the main thread only
            self._nodes[number] = self._cluster.add_node(**self._node)

    def close(self) -> None:
        """End everything."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


class Killer(threading.Thread):
    """Kills a node every ``least`` to ``most`` seconds until it is stopped."""

    def __init__(self, nodes: TwoNodes, least: float, most: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._nodes, self._least, self._most = nodes, least, most
        self._draw, self._ended = np.random.default_rng(seed), threading.Event()
        self.kills = 0

    def run(self) -> None:
        """Kill."""
        while not self._ended.wait(self._draw.uniform(self._least, self._most)):
            self._nodes.kill_and_replace(int(self._draw.integers(2)))
            self.kills += 1

    def finish(self) -> int:
        """Stop, and return how many nodes were killed."""
        self._ended.set()
        self.join()
        return self.kills


def embedded(engine: Engine, episodes: int, on_first: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Play expert episodes with two workers; the outcomes, without what depends on the machine's accidents."""
    player = EmbeddedPlayer(EnvOptions(image_size=32), workers=2, envs_per_worker=2, timeout_s=300.0, engine=engine)
    planned = [(EpisodeSpec("PickRedCube", index, 3), ExpertActor(noise=0.2)) for index in range(episodes)]
    found = []
    for result in player.play(planned, record=False):
        if not found:
            on_first()
        found.append({**dataclasses.asdict(result), "restarted": False})
    return found


def suite_digest(
    engine: Engine, episodes: int, simulators: int = 2, each: Callable[[int], None] = lambda _: None
) -> str:
    """Run no-op episodes, ``simulators`` at once in two workers; the digest of all states in order.

    ``each`` is called with the number of finished episodes.
    """
    launch = Launch("noop", sys.executable, f"{Path(__file__).with_name('noop_suite.py')}:Noop")
    digest = hashlib.sha256()
    with SimulatorPool(launch, workers=2, slots=simulators, recycle_after=None, engine=engine) as pool:
        for first in range(0, episodes, simulators):
            slots = range(min(simulators, episodes - first))
            begun = pool.reset({slot: Start("nothing", first + slot, 0) for slot in slots}, render=False)
            ended = pool.step({slot: np.full(1, first + slot, np.float32) for slot in slots}, render=())
            for slot in slots:
                pool.finish(slot)
                digest.update(begun[slot]["state"].tobytes() + ended[slot]["state"].tobytes())
            each(first + len(slots))
    return digest.hexdigest()


def memory_mb() -> float:
    """Resident memory of this process and of all below it (MB); pages they share count for each."""
    import psutil

    own = psutil.Process()
    found = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss
    return round(found / 2**20, 1)


def clocked(engine: Engine, episodes: int) -> tuple[float, float, list[dict[str, Any]]]:
    """Seconds of a run, and of it after the first result."""
    began_s, first_s = time.monotonic(), []
    found = embedded(engine, episodes, lambda: first_s.append(time.monotonic()))
    ended_s = time.monotonic()
    return ended_s - began_s, ended_s - first_s[0], found


def interval(ratios: Sequence[float]) -> dict[str, Any]:
    """Geometric mean with its 95 % interval over pairs."""
    from scipy.stats import t

    logs = np.log(ratios)
    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return {"ratio": round(mean, 3), "lo": round(low, 3), "hi": round(high, 3), "pairs": [round(r, 3) for r in ratios]}


def pairs(engine: Engine, count: int, episodes: int) -> dict[str, Any]:
    """Local and Ray in turns, each first in every second pair."""
    whole, steady, equal = [], [], True
    for number in range(count):
        order = [LOCAL, engine] if number % 2 else [engine, LOCAL]
        runs = {id(each): clocked(each, episodes) for each in order}
        local, ray = runs[id(LOCAL)], runs[id(engine)]
        whole.append(ray[0] / local[0])
        steady.append(ray[1] / local[1])
        equal &= local[2] == ray[2]
    return {"episodes": episodes, "equal": equal, "whole": interval(whole), "after_first": interval(steady)}


def kills(
    nodes: TwoNodes, play: Callable[[Engine, int], Any], episodes: int, count: int, every_s: tuple[float, float]
) -> dict[str, Any]:
    """Play until so many nodes were killed, each run compared with the local one."""
    reference, found, total, runs = play(LOCAL, episodes), True, 0, 0
    while total < count:
        killer = Killer(nodes, *every_s, seed=runs)
        killer.start()
        try:
            found &= play(nodes.engine, episodes) == reference
        finally:
            total += killer.finish()
        runs += 1
    return {"kills": total, "runs": runs, "episodes": episodes, "equal": found}


def noop(engine: Engine, episodes: int, simulators: int) -> dict[str, Any]:
    """Milliseconds per no-op episode of both engines, and the memory at each tenth of the run."""
    found: dict[str, Any] = {"episodes": episodes, "simulators": simulators}
    digests = set[str]()
    for name, one in (("local", LOCAL), ("ray", engine)):
        suite_digest(one, simulators, simulators)
        memory: list[float] = []

        def look(finished: int, memory: list[float] = memory) -> None:
            if finished >= episodes * (len(memory) + 1) / 10:
                memory.append(memory_mb())

        began_s = time.monotonic()
        digests.add(suite_digest(one, episodes, simulators, look))
        found[f"{name}_ms"] = round(1000 * (time.monotonic() - began_s) / episodes, 3)
        found[f"{name}_memory_mb"] = memory
    return {**found, "equal": len(digests) == 1}


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = options("cluster", __doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs")
    parser.add_argument("--kills", type=int, default=20, help="nodes to kill in all")
    parser.add_argument("--episodes", type=int, default=24, help="of each run of the embedded suite")
    parser.add_argument("--noop-episodes", type=int, default=20_000)
    parser.add_argument("--simulators", type=int, default=2, help="no-op simulators at once")
    given = parser.parse_args(argv)
    # A busy machine starts a node slowly.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "240"}
    nodes = TwoNodes(cores=2)
    found: dict[str, Any] = {}
    try:
        if "pairs" in given.parts:
            found["pairs"] = pairs(nodes.engine, given.pairs, given.episodes)
        if "noop" in given.parts:
            found["noop"] = noop(nodes.engine, given.noop_episodes, given.simulators)
        if "kills" in given.parts:
            found["kills"] = kills(nodes, suite_digest, given.noop_episodes, given.kills, (1.0, 8.0))
        if "embedded-kills" in given.parts:
            # A worker must have time to load between two kills, or no episode ever begins.
            found["embedded_kills"] = kills(nodes, embedded, given.episodes, given.kills, (20.0, 60.0))
    finally:
        nodes.close()
    tell(given, found)
    return 0
