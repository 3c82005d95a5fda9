"""Measures RAVL's update beside edge-of-reach's own, after both were shown to compute the same.

python scripts/bench.py agents PATH_OF_EDGE_OF_REACH --json agents.json
python scripts/bench.py agents --updates compiled graphed --device cuda

The peer is a checkout of its repository, given on the command line and never fetched; without it only our own update is
measured, and the output says so. From equal weights and equal noise the losses of actor, critics and diversity, and the
gradient of every critic weight, must agree to 1e-4 before anything is timed. Both then take turns in one process with pinned
threads, so that a busy neighbour hits both alike; what counts is the CPU time of the process, least of the repetitions. On a GPU, where
the peer is not run, it is the time by the clock until the device has finished.

``--updates`` adds our own update compiled or recorded (``training.updates``), from equal weights, with what each
takes over what the eager one takes, of the same run. Compiling happens before anything is timed.

Hopper's sizes (11 observations, 3 actions), batches of 256 rows, 3 x 256, N critics.
"""

import importlib
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import torch

from bench.turns import Part, options, pin, results, show, take_turns, tell
from worldrl.core.device import resolve_device
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.sac import actor_loss
from worldrl.methods.offline.updates import COMPILED, EAGER, GRAPHED, WARM_UP, updates_of
from worldrl.recipes.gpu.learning import A, S, make_agent, make_batch

WIDTH = 256
OURS, PEER = "worldrl", "edge-of-reach"
TOLERANCE = 1e-4  # Largest relative difference of losses and gradients from equal weights (float32)


def device_clock() -> float:
    """Seconds by the clock, once the GPU has nothing left to do."""
    torch.cuda.synchronize()
    return time.perf_counter()


def our_agent(critics: int, diversity: float) -> Ravl:
    """RAVL with the published numbers."""
    return make_agent(RavlConfig(critics=critics, diversity=diversity))


def peer_agent(folder: Path, ours: Ravl) -> Any:
    """The peer's agent with our weights. It was written for gym, whose part here gymnasium plays."""
    sys.modules.setdefault("gym", gymnasium)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    code = importlib.import_module("agent_training.agent")
    critics = ours.config.critics
    actor, critic = code.Actor(S, A, WIDTH), code.VectorizedCritic(S, A, WIDTH, critics)
    copy_weights(actor, critic, ours)
    adam = torch.optim.Adam
    agent = code.Agent(
        actor=actor,
        actor_optimizer=adam(actor.parameters(), lr=3e-4),
        critic=critic,
        critic_optimizer=adam(critic.parameters(), lr=3e-4),
        eta=ours.config.diversity,
        alpha_learning_rate=3e-4,
    )
    return agent


@torch.no_grad()
def copy_weights(actor: Any, critic: Any, ours: Ravl) -> None:
    """Give the peer's networks our weights."""
    own = [layer for layer in ours.actor.net if isinstance(layer, torch.nn.Linear)]
    for theirs, layer in zip(actor.trunk[::2], own[:-1], strict=True):
        theirs.load_state_dict(layer.state_dict())
    for theirs, rows in ((actor.mu, slice(0, A)), (actor.log_sigma, slice(A, 2 * A))):
        theirs.weight.copy_(own[-1].weight[rows])
        theirs.bias.copy_(own[-1].bias[rows])
    for theirs, layer in zip(critic.critic[::2], ours.critic.linears, strict=True):
        theirs.weight.copy_(layer.weight)
        theirs.bias.copy_(layer.bias)


def peer_batch(batch: Transitions) -> list[torch.Tensor]:
    """The same rows in the peer's order, flags as numbers in a column."""
    return [batch.obs, batch.action, batch.reward[:, None], batch.next_obs, batch.terminated.float()[:, None]]


def differences(ours: Ravl, peer: Any, batch: Transitions) -> dict[str, float]:
    """Relative differences of losses and of the critics' gradients, from equal weights and equal noise."""
    found: dict[str, float] = {}
    names = ("bench", "noise")
    with initial_weights(0, *names):  # the peer draws from torch's global stream
        theirs = peer._critic_loss(*peer_batch(batch))
    draws = stream(0, *names)
    target = ours.target(batch, draws)
    own, _ = ours.critic_loss(batch, target, draws)
    found["critic loss"] = relative(own, theirs)
    theirs.backward()
    ours.update_critic(batch, target, draws)  # leaves the gradient behind, and steps
    gradients = [
        relative(layer.weight.grad, part.weight.grad)
        for layer, part in zip(ours.critic.linears, peer.critic.critic[::2], strict=True)
    ]
    found["critic gradient"] = max(gradients)
    peer.critic_optimizer.step()
    peer.critic_optimizer.zero_grad()
    with initial_weights(0, *names):
        theirs = peer._actor_loss(batch.obs)[0]
    action, logp = ours.sample(batch.obs, stream(0, *names))
    least = ours.critic(batch.obs, action).min(dim=0).values
    found["actor loss after a critic step"] = relative(actor_loss(logp, least, ours.temperature.alpha), theirs)
    return found


def relative(a: Any, b: Any) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((a.detach() - b.detach()).norm() / b.detach().norm())


def our_part(what: str, kind: str, critics: int, diversity: float, device: torch.device) -> Part:
    """Our update, of one kind."""
    agent, batch, steps = our_agent(critics, diversity).to(device), make_batch().to(device), iter(range(10**9))
    update = updates_of(agent, kind)
    clock = device_clock if device.type == "cuda" else time.process_time
    who = OURS if kind == EAGER else kind
    return Part(
        what=what,
        who=who,
        call=lambda: update(batch, generator=stream(0, "bench", next(steps))),
        unit="updates",
        clock=clock,
    )


def parts(
    folder: Path | None, critics: int, diversity: float, kinds: list[str], device: torch.device
) -> tuple[list[Part], dict[str, float]]:
    """The updates of one setting, ours first, and how far the peer's differs; without a peer only ours."""
    what = f"RAVL update, N={critics}, eta={diversity:g}"
    made = [our_part(what, kind, critics, diversity, device) for kind in (EAGER, *kinds)]
    batch = make_batch()
    if folder is None:
        return made, {}
    found = differences(our_agent(critics, diversity), peer_agent(folder, our_agent(critics, diversity)), batch)
    peer, rows = peer_agent(folder, our_agent(critics, diversity)), peer_batch(batch)
    return [*made, Part(what=what, who=PEER, call=lambda: peer.update(rows), unit="updates")], found


def main(argv: Sequence[str]) -> int:
    """Check, measure, print, write."""
    parser = options("agents", __doc__, rounds=30)
    parser.add_argument("edge_of_reach", nargs="?", type=Path, help="checkout of anyasims/edge-of-reach")
    parser.add_argument("--critics", type=int, nargs="*", default=[10])
    parser.add_argument("--diversity", type=float, nargs="*", default=[1.0, 0.0])
    parser.add_argument("--updates", nargs="*", default=[], choices=[COMPILED, GRAPHED], help="kinds beside eager")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args(argv)
    pin(given.threads)
    device = resolve_device(given.device)
    if given.edge_of_reach is not None and device.type != "cpu":
        parser.error("edge_of_reach: the peer is measured on the CPU alone; leave it out, or give --device cpu")
    found, apart = [], {}
    for critics, diversity in product(given.critics, given.diversity):
        made, off = parts(given.edge_of_reach, critics, diversity, given.updates, device)
        wrong = {name: value for name, value in off.items() if not value <= TOLERANCE}
        if wrong:
            raise SystemExit(f"not the same mathematics, nothing is timed: {wrong}")
        take_turns(made, given.rounds, warm_up=WARM_UP + 1)  # which compiles and records
        found += results(made, OURS)
        apart[made[0].what] = off
    show(found, OURS)
    peer = "edge-of-reach" if given.edge_of_reach else "not given"
    tell(given, {"device": str(device), "peer": peer, "differences": apart, "results": found})
    return 0
