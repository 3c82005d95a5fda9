"""Published code of the state ensemble's mathematics, with our weights in it, for ``offline``; checkouts of the user's.

``rollout`` and ``training`` return what is timed, ``check`` how far loss and steps lie from ours on the same weights.
"""

import importlib
import math
import sys
import types
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldrl.core.rng import initial_weights, numpy_stream, stream
from worldrl.core.transitions import Transitions
from worldrl.world_models.state.config import EnsembleConfig
from worldrl.world_models.state.ensemble import Ensemble
from worldrl.world_models.state.ensemble_world import EnsembleWorld
from worldrl.world_models.state.terminations import hopper

S, A, MEMBERS, ELITES, WIDTH, BATCH = 11, 3, 7, 5, 200, 256
STEPS = 10  # Training steps of one call
DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)


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


# --- peers ---------------------------------------------------------------------------------------------------------


def open_peer(folder: Path, package: str) -> None:
    """Make a checkout importable: unneeded packages become empty modules, the old ``gym`` becomes Gymnasium."""
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


class cpu_has_a_device:  # noqa: N801 (reads well where it is used)
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
