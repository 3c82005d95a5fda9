"""``LerobotPolicy``: a lerobot policy (ACT, Diffusion, SmolVLA, π0) with the surface of worldrl's own.

The network lives in a worker process with lerobot's own Python environment; where lerobot is installed beside worldrl, that
is this environment. Noise is drawn here, from each row's stream, so a row's chunk depends on no other row::

    core process: streams, losses, ──pipe: observations, noise, logp and its gradient──► worker: processors, network, AdamW
    clipping, checkpoints

To the core's training loops the policy is a module with one parameter, the *anchor*: after a backward pass its gradient is
the norm of the network's gradient, so that clipping it by its norm clips the network's. :class:`WorkerAdamW` hands the
clipped scale over with its step.

Shapes legend: ``B`` rows, ``L`` executed steps of a chunk, ``H × D`` numbers of a sample, ``A`` numbers of an action.
"""

from __future__ import annotations

import importlib.util
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldrl.core.atomic import atomic_folder
from worldrl.core.errors import SettingError, WorkerEnvironmentError, WorkerError
from worldrl.core.rng import row_noise
from worldrl.core.types import Chunk, Habit, Likelihood, PolicyObs
from worldrl.policies.lerobot_folder import LerobotFolder, read_lerobot_folder
from worldrl.policies.lerobot_inputs import COMMAND, IMAGE, SHOWN, match_inputs, require_fit
from worldrl.rollout.environments import find_environment
from worldrl.rollout.simulator import Launch, Lost, SimulatorProcess
from worldrl.workers.wire import Arrays

ENVIRONMENT = "lerobot"
TARGET = "worldrl.policies.lerobot_service:Lerobot"
TIMEOUT_S = 1800.0
"""Longest silence: a VLA of billions of weights on a CPU is slow, and its loading slower."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""A policy is its folder: nothing may be fetched behind the user's back."""


def lerobot_python() -> str:
    """Interpreter that has lerobot: this one, or that of the environment ``worldrl setup lerobot`` built.

    Raises:
        WorkerEnvironmentError: neither has it.
    """
    found = importlib.util.find_spec(ENVIRONMENT)
    if found is not None and found.origin is not None:  # without origin it is a folder that happens to have the name
        return sys.executable
    try:
        return find_environment(ENVIRONMENT).python
    except WorkerEnvironmentError as error:
        raise WorkerEnvironmentError(f"lerobot is not installed in {sys.prefix}, and {error}") from error


def lerobot_launch(folder: Path, device: str) -> Launch:
    """How a policy's worker is started."""
    threads = torch.get_num_threads()
    options = {"folder": str(folder.resolve()), "device": device, "threads": threads}
    return Launch(f"policy {folder}", lerobot_python(), TARGET, options, {**OFFLINE, "OMP_NUM_THREADS": str(threads)})


class LerobotPolicy(nn.Module):
    """A lerobot policy (:class:`worldrl.core.interfaces.TrainablePolicy`).

    Args:
        folder: a complete policy folder, already read.
        launch: of its worker.

    Raises:
        WorkerError: the worker cannot be started, or says why it cannot serve.
        SettingError: an input has no place.
    """

    needs_noise = True
    """Even greedy chunks start from noise, so acting always takes generators."""
    device = torch.device("cpu")
    """Where what crosses the pipe is; the network's own device is the worker's business."""

    def __init__(self, folder: LerobotFolder, launch: Launch) -> None:
        super().__init__()
        self.folder, self.launch = folder, launch
        self.chunk_length, self.actions = folder.chunk_length, folder.actions
        self.sources = match_inputs(folder)
        self.anchor = nn.Parameter(torch.zeros(()))
        self._process = SimulatorProcess(launch, number=0, timeout_s=TIMEOUT_S)
        self._stop = weakref.finalize(self, self._process.stop)
        self.facts: dict[str, Any] = self._ask(None)[0]["suite"]
        self._shape: tuple[int, int] = tuple(self.facts["shape"])
        self._noisy = torch.tensor(self.facts["noisy"])
        self._norm = 0.0

    @classmethod
    def load(cls, folder: Path, device: torch.device | str) -> LerobotPolicy:
        """Read a folder in lerobot's published layout and start its worker.

        Raises:
            ArtefactError: the folder is incomplete: which file, and how to get it.
            WorkerEnvironmentError: there is no lerobot.
            WorkerError: the worker says why it cannot serve.
        """
        return cls(read_lerobot_folder(folder), lerobot_launch(folder, str(device)))

    def close(self) -> None:
        """End the worker."""
        self._stop()

    @property
    def more(self) -> tuple[str, ...]:
        """What the policy looks at beside picture, command and sentence."""
        return tuple(source for source in self.sources.values() if source not in SHOWN)

    # --- acting ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self,
        obs: PolicyObs,
        *,
        generators: Sequence[torch.Generator] | None,
        temperature: float = 1.0,
        habit: Habit | None = None,
    ) -> Chunk:
        """Choose a chunk for each row.

        Args:
            obs: ``B`` observations.
            generators: one CPU stream per row.
            temperature: factor on the stochastic step's noise scale; 0 leaves the policy's own deterministic sampler,
                started from noise.
            habit: the lasting part of the stochastic step's noise.

        Returns:
            The chunk; ``token`` is the draw's trace, float32, which :meth:`log_prob` takes back.

        Raises:
            SettingError: no generators, a negative temperature, or an observation that does not fit.
        """
        rows = len(obs.instruction)
        if generators is None or len(generators) != rows:
            count = "none" if generators is None else len(generators)
            raise SettingError(
                f"generators: {self.folder.kind} starts from noise, one stream per row: {rows}, got {count}"
            )
        if not temperature >= 0:
            raise SettingError(f"temperature: must be 0 or more, received {temperature}")
        noise = row_noise(generators, (2, *self._shape))
        own = torch.stack([self._noisy[torch.randint(len(self._noisy), (), generator=g)] for g in generators])
        fresh = noise[:, 1] if habit is None else self._lasting(noise[:, 1], habit)
        arrays = {**self._features(obs), "start": noise[:, 0].numpy(), "fresh": fresh.numpy(), "own": own.numpy()}
        _, found = self._ask("act", arrays, instruction=list(obs.instruction), temperature=temperature)
        action, trace, logp = (torch.from_numpy(found[name]) for name in ("action", "trace", "logp"))
        length = self.chunk_length
        return Chunk(self._within(action[:, :length]), trace, logp[:, :length])

    def log_prob(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Log-probability ``[B, L, A]`` of given traces, number by number; with gradient where gradients are on."""
        keep = torch.is_grad_enabled()
        arrays = {**self._features(obs), "trace": token.float().numpy()}
        _, found = self._ask("log_prob", arrays, instruction=list(obs.instruction), temperature=temperature, keep=keep)
        logp = torch.from_numpy(found["logp"])
        return self._with_gradient(logp, keep)[:, : self.chunk_length]

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Likelihood:
        """:meth:`log_prob`; the distribution of whole chunks has no closed form."""
        return Likelihood(self.log_prob(obs, token, temperature=temperature))

    def imitation_loss(self, obs: PolicyObs, action: Tensor, *, seed: int) -> Tensor:
        """The policy's own supervised loss of demonstrated chunks ``[B, H, A]``; its noise comes from ``seed``."""
        keep = torch.is_grad_enabled()
        arrays = {**self._features(obs), "action": action.numpy()}
        _, found = self._ask("loss", arrays, instruction=list(obs.instruction), seed=seed, keep=keep)
        return self._with_gradient(torch.from_numpy(found["loss"]), keep)

    def _within(self, action: Tensor) -> Tensor:
        """Robots take what lies in their range: beyond it the nearest end, as lerobot's environments do."""
        low, high = (torch.from_numpy(bound) for bound in self.actions.bounds)
        return torch.maximum(torch.minimum(action, high), low)

    def _lasting(self, fresh: Tensor, habit: Habit) -> Tensor:
        length, size = self.chunk_length, habit.value.shape[1]
        mixed = habit.share**0.5 * habit.value[:, None] + (1 - habit.share) ** 0.5 * fresh[:, :length, :size]
        fresh = fresh.clone()
        fresh[:, :length, :size] = mixed
        return fresh

    def _features(self, obs: PolicyObs) -> Arrays:
        shown = {IMAGE: obs.image, COMMAND: obs.command, **obs.more}
        shapes = {name: tuple(value.shape[1:]) for name, value in shown.items()}
        require_fit(self.folder, self.sources, shapes, obs.command.shape[1], "what it is shown")
        return {name: np.ascontiguousarray(shown[source].cpu().numpy()) for name, source in self.sources.items()}

    # --- learning --------------------------------------------------------------------------------------------------

    def _with_gradient(self, value: Tensor, keep: bool) -> Tensor:
        return _Remote.apply(self.anchor, value, self._backward) if keep else value

    def _backward(self, gradient: Tensor) -> Tensor:
        """Add to the network's gradient; return by how much its norm grew, so that the anchor's gradient is the norm."""
        _, found = self._ask("backward", {"gradient": gradient.contiguous().numpy()})
        before, self._norm = self._norm, float(found["norm"])
        return torch.tensor(self._norm - before)

    def make_optimizer(self, learning_rate: float, weight_decay: float) -> WorkerAdamW:
        """The optimiser of the network, in the worker."""
        return WorkerAdamW(self, learning_rate, weight_decay)

    def zero_gradient(self) -> None:
        """Forget the network's gradient."""
        self._ask("zero")
        self._norm = 0.0

    def step(self, scaled_norm: float, group: Mapping[str, Any]) -> None:
        """Let the worker take one AdamW step with gradients scaled to a norm."""
        scale = scaled_norm / self._norm if self._norm else 0.0
        options = {name: group[name] for name in ("lr", "weight_decay", "eps", "betas")}
        self._ask("step", scale=scale, **options)

    # --- state -----------------------------------------------------------------------------------------------------

    def read(self, what: str) -> dict[str, Tensor]:
        """Fetch ``weights`` (trained ones and moving buffers) or the ``optimizer``'s moments, by name."""
        return {name: torch.from_numpy(value) for name, value in self._ask("read", what=what)[1].items()}

    def write(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`read` gave."""
        self._ask("write", {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, what=what)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What training changes: the network's trained weights, from the worker."""
        return self.read("weights")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restore :meth:`state_dict`'s value."""
        self.write("weights", state_dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> LerobotPolicy:
        """Another worker with the weights as they are now."""
        twin = LerobotPolicy(self.folder, self.launch)
        twin.load_state_dict(self.state_dict())
        return twin

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> None:
        """Write lerobot's published layout; ``parents`` are not recorded, the layout has no place for them."""
        with atomic_folder(folder) as temp:
            self._ask("save", folder=str(temp.resolve()))

    # --- the pipe --------------------------------------------------------------------------------------------------

    def _ask(self, kind: str | None, arrays: Arrays | None = None, **header: Any) -> tuple[dict[str, Any], Arrays]:
        try:
            if kind is not None:
                self._process.send({"kind": kind, **header}, arrays)
            return self._process.answer()
        except Lost as news:
            self._stop()
            raise WorkerError(f"{self.launch.name}: its worker {news}; start the command again, it goes on") from news


class _Remote(torch.autograd.Function):
    """A value computed in the worker: its gradient goes there, and what comes back is the anchor's."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, send: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.send = send
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.send(gradient[0]), None, None


class WorkerAdamW(torch.optim.Optimizer):
    """AdamW whose parameters and moments are the worker's; here it has the anchor, the learning rate and the betas.

    Args:
        policy: whose network is trained.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
    """

    def __init__(self, policy: LerobotPolicy, learning_rate: float, weight_decay: float) -> None:
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "betas": (0.9, 0.999), "eps": 1e-8}
        super().__init__([policy.anchor], defaults)
        self._policy = policy

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, there and here."""
        super().zero_grad(set_to_none)
        self._policy.zero_gradient()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with the gradients as the anchor's was clipped."""
        gradient = self._policy.anchor.grad
        if gradient is not None:
            self._policy.step(abs(float(gradient)), self.param_groups[0])

    def state_dict(self) -> dict[str, Any]:
        """Settings, and the worker's moments."""
        return {**super().state_dict(), "state": self._policy.read("optimizer")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`'s value."""
        super().load_state_dict({**state_dict, "state": {}})
        self._policy.write("optimizer", state_dict["state"])
