"""Measures the state ensemble (rollout generation, training step) beside published code of the same mathematics.

``python scripts/bench_offline.py --threads 1 offlinerl_kit=PATH edge_of_reach=PATH --json bench_offline.json``

The peers are checkouts of their repositories, given on the command line and never fetched; without them only our own
parts are measured, and the output says so. Before anything is timed, ours and a peer's are shown to compute the same: equal
weights give equal losses (to 1e-5), and equal moments of (s', r). All take turns in one process with pinned threads, so
that a busy neighbour hits all alike; what counts is the CPU time of the process, least and median of the repetitions.

Hopper's sizes (11 observations, 3 actions), 7 members of which 5 are elites, 4 x 200, batches of 256 rows per member.

To add a part (an agent's update, say): write a function that returns a list of :class:`Part` with the same ``what``, one
per code base, the first ours, and add it to :data:`PARTS`.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import torch
from bench_offline_peers import BATCH, DECAY, MEMBERS, STEPS, A, Kit, Reach, S, make_ensemble, make_rows
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.atomic import write_file
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.world_models.state.config import EnsembleTraining, Uncertainty
from worldrl.world_models.state.ensemble_training import MemberRows, make_optimizer, train_epoch
from worldrl.world_models.state.ensemble_world import EnsembleWorld, EnsembleWorldConfig
from worldrl.world_models.state.terminations import hopper

OURS, KIT, REACH = "worldrl", "OfflineRL-Kit", "edge-of-reach"


@dataclass
class Part:
    """One thing that is measured, in turn with the others.

    Attributes:
        what: the task, the same text for all code bases.
        who: the code base.
        call: does it once.
        units: how many of ``unit`` one call makes.
        unit: what is counted.
        seconds: CPU seconds of each call.
        wall: wall seconds of each.
    """

    what: str
    who: str
    call: Callable[[], object]
    units: int
    unit: str
    seconds: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Call once."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.call()
        self.seconds.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)


# --- ours ----------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """A squashed Gaussian actor with ReLU layers of 256, as both peers have it; sampling needs no log-probability."""

    def __init__(self, layers: int):
        super().__init__()
        widths = [S, *[256] * layers]
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.out = nn.Linear(256, 2 * A)

    @torch.no_grad()
    def act(self, obs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Sample actions ``[B, A]``."""
        for layer in self.hidden:
            obs = torch.relu_(layer(obs))
        mean, spread = self.out(obs).chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=generator)
        return torch.addcmul(mean, spread.clamp_(-5, 2).exp_(), noise).tanh_()


def make_actor(layers: int) -> Actor:
    """An actor with small actions."""
    with initial_weights(0, "bench", "actor"):
        return Actor(layers)


def our_rollout(rows: Transitions, count: int, layers: int, uncertainty: Uncertainty) -> Callable[[], object]:
    """Policy, model, termination and storage of ``count`` rows, one step."""
    world = EnsembleWorld(make_ensemble(rows), rows.obs, hopper, EnsembleWorldConfig(uncertainty=uncertainty))
    penalty = 1.0 if world.measures_uncertainty else 0.0
    branches = Branches(world, len(rows), BranchConfig(starts=count, horizon=1, penalty=penalty))
    buffer, agent, generator = TransitionBuffer(5 * count), make_actor(layers), stream(0, "bench", "rollout")

    def call() -> None:
        buffer.add(branches.generate(agent, generator=generator)[0])

    return call


def our_training(rows: Transitions) -> Callable[[], object]:
    """:data:`STEPS` training steps."""
    training = EnsembleTraining(weight_decay=DECAY, batch_size=BATCH)
    ensemble, few = make_ensemble(rows), rows.select(torch.arange(STEPS * BATCH))
    data = MemberRows(ensemble, few, few.select(torch.arange(8)), training, 0, "bench")
    return partial(train_epoch, ensemble, make_optimizer(ensemble, training), data, 0)


# --- what is measured ----------------------------------------------------------------------------------------------


def rollout_parts(rows: Transitions, peers: dict[str, Any], count: int) -> list[Part]:
    """One rollout step of ``count`` rows: draw starts, policy, model, termination, storage."""
    two, three = "policy 2 x 256", "policy 3 x 256"
    wanted = [
        (f"rollout, {two}", 2, Uncertainty.none, KIT, lambda kit: kit.rollout(count, 0.0)),
        (f"rollout with MOPO's penalty, {two}", 2, Uncertainty.max_sigma, KIT, lambda kit: kit.rollout(count, 1.0)),
        (f"rollout, {three}", 3, Uncertainty.none, REACH, lambda reach: reach.rollout(count)),
    ]
    parts = []
    for what, layers, uncertainty, peer, theirs in wanted:
        parts.append(Part(what, OURS, our_rollout(rows, count, layers, uncertainty), count, "rows"))
        if peer in peers:
            parts.append(Part(what, peer, theirs(peers[peer]), count, "rows"))
    return parts


def training_parts(rows: Transitions, peers: dict[str, Any], count: int) -> list[Part]:
    """Steps of the ensemble's training: batches, loss, gradient, Adam."""
    what = f"ensemble training step, {MEMBERS} x {BATCH} rows"
    made = [Part(what, OURS, our_training(rows), STEPS, "steps")]
    return made + [Part(what, name, peer.training(), STEPS, "steps") for name, peer in peers.items()]


PARTS: list[Callable[[Transitions, dict[str, Any], int], list[Part]]] = [rollout_parts, training_parts]
PEERS: dict[str, tuple[str, Callable[[Path, Transitions], Any]]] = {
    "offlinerl_kit": (KIT, Kit),
    "edge_of_reach": (REACH, Reach),
}


def check(peers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Compare every peer with ours; stop where the mathematics differs."""
    found = {name: peer.check() for name, peer in peers.items()}
    for name, difference in found.items():
        if difference["loss"] > 1e-5 or difference["moments"] > 6:
            raise SystemExit(f"{name} and {OURS} do not compute the same: {difference}")
    return found


def take_turns(parts: list[Part], rounds: int) -> None:
    """Warm every part up once, then measure all in turn."""
    for part in parts:
        part.call()
    for _ in range(rounds):
        for part in parts:
            part.measure()


def summary(parts: list[Part]) -> list[dict[str, Any]]:
    """Milliseconds per call, units per second, and how many times a peer's time ours takes less."""
    least = {(part.what, part.who): min(part.seconds) for part in parts}
    median = {(part.what, part.who): statistics.median(part.seconds) for part in parts}
    return [
        {
            "what": part.what,
            "who": part.who,
            "unit": part.unit,
            "repetitions": len(part.seconds),
            "cpu_ms_per_call": {"least": 1e3 * min(part.seconds), "median": 1e3 * statistics.median(part.seconds)},
            "wall_ms_per_call": {"least": 1e3 * min(part.wall), "median": 1e3 * statistics.median(part.wall)},
            "units_per_call": part.units,
            "units_per_cpu_s": part.units / min(part.seconds),
            "times_slower_than_ours": {
                "least": least[part.what, part.who] / least[part.what, OURS],
                "median": median[part.what, part.who] / median[part.what, OURS],
            },
        }
        for part in parts
    ]


def show(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="CPU time per call: least (median)")
    for heading in ("", "who", "ms", "per CPU second", "n", "times ours"):
        table.add_column(heading, justify="left" if heading in ("", "who") else "right")
    for r in results:
        cpu, ratio = r["cpu_ms_per_call"], r["times_slower_than_ours"]
        table.add_row(
            r["what"], r["who"], f"{cpu['least']:.1f} ({cpu['median']:.1f})", f"{r['units_per_cpu_s']:,.0f} {r['unit']}",
            str(r["repetitions"]), f"{ratio['least']:.2f} ({ratio['median']:.2f})",
        )  # fmt: skip
    Console(width=140).print(table)


def read_peers(texts: list[str]) -> dict[str, Path]:
    """Read ``name=PATH`` arguments."""
    found = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if name not in PEERS or not separator:
            raise SystemExit(f"{text!r}: give a peer as NAME=PATH with NAME one of {', '.join(PEERS)}")
        found[name] = Path(path)
    return found


def main() -> None:
    """Check, measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", help=f"checkouts: {', '.join(f'{name}=PATH' for name in PEERS)}")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, pinned to as many processors")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of one rollout step")
    parser.add_argument("--data", type=int, default=50_000, help="rows of the dataset")
    parser.add_argument("--rounds", type=int, default=30, help="repetitions of each part")
    parser.add_argument("--json", type=Path, default=Path("bench_offline.json"), help="where the numbers go")
    args = parser.parse_args()
    folders = read_peers(args.peers)
    torch.set_num_threads(args.threads)
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, processors)

    rows = make_rows(args.data)
    peers = {PEERS[name][0]: PEERS[name][1](folder, rows) for name, folder in folders.items()}
    equality = check(peers)
    parts = [part for make in PARTS for part in make(rows, peers, args.rows)]
    load = os.getloadavg()[0]
    take_turns(parts, args.rounds)
    machine = {"cpus": os.cpu_count(), "threads": args.threads, "processors": processors, "arch": platform.machine()}
    machine["load"] = {"before": load, "after": os.getloadavg()[0]}
    body = {"torch": torch.__version__, "gymnasium": gymnasium.__version__, "machine": machine, "equality": equality}
    results = summary(parts)
    write_file(args.json, (json.dumps({**body, "results": results}, indent=1) + "\n").encode())
    show(results)
    missing = [f"{name}=PATH" for name in PEERS if name not in folders]
    if missing:
        Console().print(f"measured without {', '.join(missing)}: give their checkouts to compare", highlight=False)


if __name__ == "__main__":
    main()
