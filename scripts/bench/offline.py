"""Measures the state ensemble (rollout generation, training step) beside published code of the same mathematics.

python scripts/bench.py offline offlinerl_kit=PATH edge_of_reach=PATH --json offline.json

The peers are checkouts of their repositories, given on the command line and never fetched; without them only our own
parts are measured, and the output says so. Before anything is timed, ours and a peer's are shown to compute the same: equal
weights give equal losses (to 1e-5), and equal moments of (s', r). All take turns in one process with pinned threads, so
that a busy neighbour hits all alike; what counts is the CPU time of the process, least and median of the repetitions.

Hopper's sizes (11 observations, 3 actions), 7 members of which 5 are elites, 4 x 200, batches of 256 rows per member.

To add a part (an agent's update, say): write a function that returns a list of :class:`Part` with the same ``what``, one
per code base, the first ours, and add it to :data:`PARTS`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.peers import BATCH, DECAY, MEMBERS, STEPS, A, Kit, Reach, S, make_ensemble, make_rows
from bench.turns import Part, options, pin, results, show, take_turns, tell
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.world_models.state.config import EnsembleTraining, Uncertainty
from worldrl.world_models.state.ensemble_training import MemberRows, make_optimizer, train_epoch
from worldrl.world_models.state.ensemble_world import EnsembleWorld, EnsembleWorldConfig
from worldrl.world_models.state.terminations import hopper

OURS, KIT, REACH = "worldrl", "OfflineRL-Kit", "edge-of-reach"


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


def our_rollout(rows: Transitions, count: int, layers: int, uncertainty: Uncertainty) -> Callable[[], object]:
    """Policy, model, termination and storage of ``count`` rows, one step."""
    world = EnsembleWorld(make_ensemble(rows), rows.obs, hopper, EnsembleWorldConfig(uncertainty=uncertainty))
    penalty = 1.0 if world.measures_uncertainty else 0.0
    branches = Branches(world, len(rows), BranchConfig(starts=count, horizon=1, penalty=penalty))
    buffer, generator = TransitionBuffer(5 * count), stream(0, "bench", "rollout")
    with initial_weights(0, "bench", "actor"):
        agent = Actor(layers)

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

    def rolled(what: str, who: str, call: Callable[[], object]) -> Part:
        return Part(what=what, who=who, call=call, units=count, unit="rows")

    for what, layers, uncertainty, peer, theirs in wanted:
        parts.append(rolled(what, OURS, our_rollout(rows, count, layers, uncertainty)))
        if peer in peers:
            parts.append(rolled(what, peer, theirs(peers[peer])))
    return parts


def training_parts(rows: Transitions, peers: dict[str, Any], count: int) -> list[Part]:
    """Steps of the ensemble's training: batches, loss, gradient, Adam."""
    what = f"ensemble training step, {MEMBERS} x {BATCH} rows"
    calls = {OURS: our_training(rows), **{name: peer.training() for name, peer in peers.items()}}
    return [Part(what=what, who=who, call=call, units=STEPS, unit="steps") for who, call in calls.items()]


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


def read_peers(texts: list[str]) -> dict[str, Path]:
    """Read ``name=PATH`` arguments."""
    found = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if name not in PEERS or not separator:
            raise SystemExit(f"{text!r}: give a peer as NAME=PATH with NAME one of {', '.join(PEERS)}")
        found[name] = Path(path)
    return found


def main(argv: Sequence[str]) -> int:
    """Check, measure, print, write."""
    parser = options("offline", __doc__, rounds=30)
    parser.add_argument("peers", nargs="*", help=f"checkouts: {', '.join(f'{name}=PATH' for name in PEERS)}")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of one rollout step")
    parser.add_argument("--data", type=int, default=50_000, help="rows of the dataset")
    given = parser.parse_args(argv)
    folders = read_peers(given.peers)
    pin(given.threads)
    rows = make_rows(given.data)
    peers = {PEERS[name][0]: PEERS[name][1](folder, rows) for name, folder in folders.items()}
    equality = check(peers)
    parts = [part for make in PARTS for part in make(rows, peers, given.rows)]
    take_turns(parts, given.rounds)
    found = results(parts, OURS)
    show(found, OURS)
    tell(given, {"without": [name for name in PEERS if name not in folders], "equality": equality, "results": found})
    return 0
