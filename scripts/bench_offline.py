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
import importlib
import json
import math
import os
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from worldrl.algorithms.offline.branches import BranchConfig, Branches
from worldrl.algorithms.offline.buffer import TransitionBuffer
from worldrl.core.atomic import write_file
from worldrl.core.rng import initial_weights, numpy_stream, stream
from worldrl.core.transitions import Transitions
from worldrl.world_models.offline.config import EnsembleConfig, EnsembleTraining, Uncertainty
from worldrl.world_models.offline.ensemble import Ensemble
from worldrl.world_models.offline.ensemble_training import MemberRows, make_optimizer, train_epoch
from worldrl.world_models.offline.ensemble_world import EnsembleWorld, EnsembleWorldConfig
from worldrl.world_models.offline.terminations import hopper

S, A, MEMBERS, ELITES, WIDTH, BATCH = 11, 3, 7, 5, 200, 256
STEPS = 10
"""Training steps of one call."""
DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
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


# --- the same data and weights for all -----------------------------------------------------------------------------


def make_rows(count: int) -> Transitions:
    """Random rows of Hopper's sizes; states that its termination rule calls healthy."""
    generator = stream(0, "bench", "rows")
    obs = 0.05 * torch.randn(count, S, generator=generator)
    obs[:, 0] += 1.2
    action = torch.rand(count, A, generator=generator) * 2 - 1
    change = 0.02 * torch.randn(count, S, generator=generator)
    no = torch.zeros(count, dtype=torch.bool)
    return Transitions(obs, action, torch.randn(count, generator=generator), obs + change, no, no)


def make_ensemble(rows: Transitions) -> Ensemble:
    """An ensemble of the published size with standardised inputs; its steps are small, as a trained one's."""
    with initial_weights(0, "bench", "ensemble"):
        ensemble = Ensemble(EnsembleConfig(members=MEMBERS, elites=ELITES, width=WIDTH, input_clip=10.0), S, A)
    ensemble.fit_statistics(rows)
    with torch.no_grad():
        ensemble.layers[-1].weight[:, :, : S + 1] *= 0.02
        ensemble.layers[-1].bias[:, :, S + 1 :] -= 8.0
    return ensemble


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


# --- ours ----------------------------------------------------------------------------------------------------------


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


# --- peers ---------------------------------------------------------------------------------------------------------


def open_peer(folder: Path, package: str) -> None:
    """Make a checkout importable; packages it imports without needing them here become empty modules.

    The old ``gym`` becomes Gymnasium, which both peers' measured parts get along with.
    """
    if not (folder / package).is_dir():
        raise SystemExit(f"{folder}: no folder {package!r} in it; give the root of the repository's checkout")
    sys.path.insert(0, str(folder))
    importlib.import_module("gymnasium.envs.mujoco.mujoco_env")
    for name in ("", ".envs", ".envs.mujoco"):
        sys.modules["gym" + name] = sys.modules["gymnasium" + name]
    for name in ("tqdm", "imageio", "wandb", "d4rl"):
        if name not in sys.modules and find_spec(name) is None:
            module = types.ModuleType(name)
            module.trange = module.tqdm = lambda items, **_: range(items) if isinstance(items, int) else items  # type: ignore[attr-defined]
            sys.modules[name] = module


class Kit:
    """OfflineRL-Kit's ensemble, actor and buffer with our weights in them."""

    def __init__(self, folder: Path, rows: Transitions):
        open_peer(folder, "offlinerlkit")
        modules, nets = (importlib.import_module(f"offlinerlkit.{name}") for name in ("modules", "nets"))
        self.dynamics_of = importlib.import_module("offlinerlkit.dynamics").EnsembleDynamics
        self.policy_of = importlib.import_module("offlinerlkit.policy").MOPOPolicy
        self.buffer_of = importlib.import_module("offlinerlkit.buffer").ReplayBuffer
        self.terminal = importlib.import_module("offlinerlkit.utils.termination_fns").get_termination_fn("hopper")
        self.scaler_of = importlib.import_module("offlinerlkit.utils.scaler").StandardScaler
        self.ours, self.rows = make_ensemble(rows), rows
        self.model_of, self.modules, self.nets = modules.EnsembleDynamicsModel, modules, nets

    def dynamics(self, optimizer: Callable[[Any], torch.optim.Optimizer], penalty: float = 0.0) -> Any:
        """Their dynamics around our weights and statistics."""
        model = self.model_of(S, A, [WIDTH] * 4, num_ensemble=MEMBERS, num_elites=ELITES, weight_decays=list(DECAY))
        with torch.no_grad():
            for theirs, layer in zip([*model.backbones, model.output_layer], self.ours.layers, strict=True):
                theirs.weight.copy_(layer.weight)
                theirs.bias.copy_(layer.bias)
        mean, std = self.ours.input_mean.numpy()[None], self.ours.input_std.numpy()[None]
        return self.dynamics_of(model, optimizer(model.parameters()), self.scaler_of(mean, std), self.terminal, penalty)

    def data(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets as their ``train`` hands them to ``learn``: ``[M, N, ...]``."""
        few = self.rows.select(torch.arange(steps * BATCH))
        inputs = self.ours.inputs(few.obs, few.action).numpy()
        return tuple(np.repeat(array[None], MEMBERS, 0) for array in (inputs, self.ours.targets(few).numpy()))  # type: ignore[return-value]

    def rollout(self, count: int, penalty: float) -> Callable[[], object]:
        """Their MOPO rollout of one step, and storage."""
        net = self.nets.MLP(S, [256, 256])
        dist = self.modules.TanhDiagGaussian(256, A, unbounded=True, conditioned_sigma=True)
        actor = self.modules.ActorProb(net, dist)
        critic = self.modules.Critic(self.nets.MLP(S + A, [256, 256]))
        adam = partial(torch.optim.Adam, lr=1e-3)
        optimizers = [adam(module.parameters()) for module in (actor, critic, critic)]
        policy = self.policy_of(self.dynamics(adam, penalty), actor, critic, critic, *optimizers)
        buffer = self.buffer_of(5 * count, (S,), np.float32, A, np.float32)
        obs, draw = self.rows.obs.numpy(), numpy_stream(0, "bench", "starts")

        def call() -> None:
            made, _ = policy.rollout(obs[draw.integers(0, len(obs), count)], 1)
            buffer.add_batch(**made)

        return call

    def training(self) -> Callable[[], object]:
        """:data:`STEPS` of their training steps."""
        dynamics, (inputs, targets) = self.dynamics(partial(torch.optim.Adam, lr=1e-3)), self.data(STEPS)
        return partial(dynamics.learn, inputs, targets, BATCH, 0.01)

    def check(self) -> dict[str, float]:
        """Largest differences between theirs and ours on the same weights."""
        dynamics, (inputs, targets) = self.dynamics(partial(torch.optim.SGD, lr=0.0)), self.data(1)
        theirs = float(dynamics.learn(inputs, targets, BATCH, 0.01))
        decay = sum(0.5 * d * layer.weight.square().sum() for d, layer in zip(DECAY, self.ours.layers, strict=True))
        ours = float((our_loss(self.ours, inputs, targets) + decay).detach())
        dynamics.model.elites.data = self.ours.elites.clone()

        def step(obs: Tensor, action: Tensor) -> np.ndarray:
            next_obs, reward, _, _ = dynamics.step(obs.numpy(), action.numpy())
            return np.concatenate([next_obs, reward], axis=1)

        return {"loss": abs(theirs / ours - 1), "moments": moments_apart(self.ours, self.rows, step)}


class Reach:
    """edge-of-reach's ensemble, actor and buffer with our weights in them."""

    def __init__(self, folder: Path, rows: Transitions):
        open_peer(folder, "dynamics_training")
        self.ensembles = importlib.import_module("dynamics_training.ensemble")
        self.rollouts = importlib.import_module("agent_training.rollout_generation")
        self.actor_of = importlib.import_module("agent_training.agent").Actor
        self.buffer_of = importlib.import_module("shared.data_buffer").DataBuffer
        self.ours, self.rows = make_ensemble(rows), rows

    def ensemble(self) -> Any:
        """Their ensemble with our weights and statistics."""
        params = {
            "ob_dim": S,
            "ac_dim": A,
            "hidden_dim": WIDTH,
            "seed": 0,
            "l2_reg_multiplier": 1.0,
            "env_name": "hopper",
        }
        sizes = {
            "num_models": MEMBERS,
            "num_elites": ELITES,
            "train_memory": 8,
            "val_memory": 8,
            "train_val_ratio": 0.2,
        }
        theirs = self.ensembles.Ensemble(params | sizes)
        for index, network in theirs.networks.items():
            put_weights(network.net, self.ours, index)
        filters = (theirs.state_filter, theirs.action_filter)
        for place, known in zip((slice(0, S), slice(S, None)), filters, strict=True):
            known.mean = self.ours.input_mean[place].numpy()
            known.stdev = self.ours.input_std[place].numpy()
            known._update_torch()
        return theirs

    def model(self) -> Any:
        """Their dynamics model, made without its pickled files."""
        model = object.__new__(self.rollouts.DynamicsModel)
        rule = vars(self.rollouts)["get_done_func"]("hopper")
        vars(model).update(
            env_name="hopper", state_dim=S, action_dim=A, ensemble=self.ensemble(), **{"done_func": rule}
        )
        return model

    def rollout(self, count: int) -> Callable[[], object]:
        """Their rollout of one step, storage included."""
        buffer = self.buffer_of(S, A, 5 * count)
        generator = self.rollouts.RolloutGenerator(self.model(), self.actor_of(S, A, 256), 1, count, buffer)
        draw = stream(0, "bench", "starts")

        def call() -> None:
            starts = self.rows.obs[torch.randint(len(self.rows), (count,), generator=draw)]
            with cpu_has_a_device():
                generator.generate_rollouts(starts)

        return call

    def loss(self, ensemble: Any, batch: list[Tensor]) -> Tensor:
        """Their training loop's loss of one batch ``[B, M, ...]``, without weight decay, which their optimizer takes."""
        x, change, reward = batch
        total = sum(
            net.train_model_forward(x[:, i], change[:, i], reward[:, i]) for i, net in ensemble.networks.items()
        )
        return total + 0.01 * ensemble.max_logvar.sum() - 0.01 * ensemble.min_logvar.sum()

    def batches(self, ensemble: Any, steps: int) -> Any:
        """Their data loader over ``steps`` batches."""
        few = self.rows.select(torch.arange(steps * BATCH))
        ended = np.zeros((len(few), 1), np.float32)
        columns = (few.obs, few.action, few.reward[:, None], few.next_obs)
        recorded = self.ensembles.Transition(*(column.numpy() for column in columns), ended)
        filters = (ensemble.state_filter, ensemble.action_filter)
        dataset = self.ensembles.EnsembleTransitionDataset(recorded, *filters, n_models=MEMBERS)
        return torch.utils.data.DataLoader(dataset, shuffle=True, batch_size=BATCH)

    def training(self) -> Callable[[], object]:
        """:data:`STEPS` of their training steps, data loader included."""
        ensemble = self.ensemble()
        optimizer, loader = torch.optim.Adam(ensemble.weights, lr=1e-3), self.batches(ensemble, STEPS)

        def call() -> None:
            for batch in loader:
                loss = self.loss(ensemble, batch)
                loss.item()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return call

    def check(self) -> dict[str, float]:
        """Largest differences between theirs and ours on the same weights."""
        ensemble, model = self.ensemble(), self.model()
        batch = next(iter(self.batches(ensemble, 1)))
        inputs, targets = batch[0].transpose(0, 1), torch.cat(batch[1:], dim=-1).transpose(0, 1)
        theirs = self.loss(ensemble, batch).item()
        ours = our_loss(self.ours, inputs.numpy(), targets.numpy()).item()

        def step(obs: Tensor, action: Tensor) -> np.ndarray:
            with cpu_has_a_device():
                next_obs, reward, _, _ = model.transition_function_torch(obs, action)
            return torch.cat([next_obs, reward[:, None]], dim=1).numpy()

        return {"loss": abs(theirs / ours - 1), "moments": moments_apart(self.ours, self.rows, step)}


class cpu_has_a_device:  # noqa: N801 (reads as a sentence where it is used)
    """Lets ``tensor.to(other.get_device())`` work on a CPU, where the published code passes -1."""

    def __enter__(self) -> None:
        self.kept = Tensor.get_device
        Tensor.get_device = lambda tensor: tensor.device  # type: ignore[assignment,method-assign]

    def __exit__(self, *_: object) -> None:
        Tensor.get_device = self.kept  # type: ignore[method-assign]


def put_weights(net: Any, ours: Ensemble, index: int) -> None:
    """Copy member ``index`` into one of edge-of-reach's networks, whose mean and log-variance are two layers."""
    names = [net.fc1, net.fc2, net.fc3, net.fc4]
    with torch.no_grad():
        for theirs, layer in zip(names, ours.layers, strict=False):
            theirs.weight.copy_(layer.weight[index].T)
            theirs.bias.copy_(layer.bias[index, 0])
        last = ours.layers[-1]
        for theirs, place in zip((net.delta, net.logvar), (slice(0, S + 1), slice(S + 1, None)), strict=True):
            theirs.weight.copy_(last.weight[index][:, place].T)
            theirs.bias.copy_(last.bias[index, 0, place])


# --- the same mathematics ------------------------------------------------------------------------------------------


def our_loss(ensemble: Ensemble, inputs: np.ndarray, targets: np.ndarray) -> Tensor:
    """Our training loss on inputs ``[M, B, ...]``."""
    mean, logvar = ensemble(torch.from_numpy(np.ascontiguousarray(inputs, np.float32)))
    return ensemble.loss(mean, logvar, torch.from_numpy(np.ascontiguousarray(targets, np.float32)), 0.01)


def moments_apart(ensemble: Ensemble, rows: Transitions, step: Callable[[Tensor, Tensor], np.ndarray]) -> float:
    """Step one state 40,000 times in both; return the largest difference of means in standard errors."""
    count = 40_000
    obs, action = rows.obs[:1].expand(count, -1).contiguous(), rows.action[:1].expand(count, -1).contiguous()
    world, generator = EnsembleWorld(ensemble, obs[:1], hopper), stream(0, "bench", "moments")
    state, _ = world.start(torch.zeros(count, dtype=torch.int64), generator=generator)
    _, outcome = world.step(state, action, generator=generator)
    ours = torch.cat([outcome.obs, outcome.reward[:, None]], dim=1).double().numpy()
    theirs = step(obs, action).astype(np.float64)
    error = np.sqrt((ours.var(0) + theirs.var(0)) / count)
    spread = np.abs(np.log(ours.var(0) / theirs.var(0))) * math.sqrt(count / 4)  # of a normal's log-variance
    return float(max((np.abs(ours.mean(0) - theirs.mean(0)) / error).max(), spread.max()))


def check(peers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Compare every peer with ours; stop where the mathematics differs."""
    found = {name: peer.check() for name, peer in peers.items()}
    for name, difference in found.items():
        if difference["loss"] > 1e-5 or difference["moments"] > 6:
            raise SystemExit(f"{name} and {OURS} do not compute the same: {difference}")
    return found


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
