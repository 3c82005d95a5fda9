"""The worker process of a lerobot policy, and its weights, gradients and optimiser as the core's training loops see them.

The loops see one parameter, the *anchor*: after a backward pass its gradient is the norm of the network's gradient, so that
clipping it by its norm clips the network's. :class:`WorkerAdamW` hands the clipped scale over with its step.
"""

from __future__ import annotations

import importlib.util
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.policies.lerobot.release import installed_refusal
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch, SimulatorProcess, WorkerDied
from worldrl.workers.link.wire import Arrays

ENVIRONMENT = "lerobot"
TARGET = "worldrl.policies.lerobot.service:Lerobot"
TIMEOUT_S = 1800.0
"""Longest silence: a VLA of billions of weights on a CPU is slow, and its loading slower."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""A policy is its folder: nothing may be fetched behind the user's back."""


def lerobot_python() -> str:
    """Interpreter that has a lerobot we can serve: this one, or that of the environment ``worldrl setup lerobot`` built.

    Raises:
        WorkerEnvironmentError: neither has it.
    """
    found = importlib.util.find_spec(ENVIRONMENT)
    here = found is not None and found.origin is not None  # without origin it is a folder that happens to have the name
    reason = installed_refusal() if here else "lerobot is not installed"
    if reason is None:
        return sys.executable
    try:
        return find_environment(ENVIRONMENT).python
    except WorkerEnvironmentError as error:
        raise WorkerEnvironmentError(f"{reason} (in {sys.prefix}), and {error}") from error


def lerobot_launch(folder: Path, device: str) -> Launch:
    """How a policy's worker is started."""
    threads = torch.get_num_threads()
    options = {"folder": str(folder.resolve()), "device": device, "threads": threads}
    return Launch(f"policy {folder}", lerobot_python(), TARGET, options, {**OFFLINE, "OMP_NUM_THREADS": str(threads)})


class LerobotWorker:
    """A policy's worker process.

    Args:
        launch: how it is started.

    Attributes:
        facts: what it says of its network: ``shape`` of a sample, ``noisy`` steps, versions.
        anchor: stands for the network's trained weights.

    Raises:
        WorkerError: it cannot be started, or says why it cannot serve.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._process = SimulatorProcess(launch, number=0, timeout_s=TIMEOUT_S)
        self._stop = weakref.finalize(self, self._process.stop)
        self.facts: dict[str, Any] = self.ask(None)[0]["suite"]
        self.anchor = nn.Parameter(torch.zeros(()))
        self._norm = 0.0

    def ask(self, kind: str | None, arrays: Arrays | None = None, **header: Any) -> tuple[dict[str, Any], Arrays]:
        """Send a request of ``policies.lerobot.service`` and wait for the answer; None waits for the first one."""
        try:
            if kind is not None:
                self._process.send({"kind": kind, **header}, arrays)
            return self._process.answer()
        except WorkerDied as news:
            self.close()
            raise WorkerError(f"{self.launch.name}: its worker {news}; start the command again, it resumes") from news

    def close(self) -> None:
        """End the process."""
        self._stop()

    # --- gradients -------------------------------------------------------------------------------------------------

    def with_gradient(self, value: Tensor, keep: bool) -> Tensor:
        """Let a value that the worker kept take part in a backward pass here; as it is where nothing was kept."""
        return _Remote.apply(self.anchor, value, self._backward) if keep else value

    def _backward(self, gradient: Tensor) -> Tensor:
        """Add to the network's gradient; return by how much its norm grew, so that the anchor's gradient is the norm."""
        _, found = self.ask("backward", {"gradient": gradient.contiguous().numpy()})
        before, self._norm = self._norm, float(found["norm"])
        return torch.tensor(self._norm - before)

    def zero_gradient(self) -> None:
        """Forget the network's gradient."""
        self.ask("zero")
        self._norm = 0.0

    def step(self, scaled_norm: float, group: Mapping[str, Any]) -> None:
        """Let the worker take one AdamW step with gradients scaled to a norm."""
        scale = scaled_norm / self._norm if self._norm else 0.0
        options = {name: group[name] for name in ("lr", "weight_decay", "eps", "betas")}
        self.ask("step", scale=scale, **options)

    # --- weights and moments ---------------------------------------------------------------------------------------

    def read(self, what: str) -> dict[str, Tensor]:
        """Fetch ``weights`` (trained ones and moving buffers) or the ``optimizer``'s moments, by name."""
        return {name: torch.from_numpy(value) for name, value in self.ask("read", what=what)[1].items()}

    def write(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`read` gave."""
        self.ask("write", {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, what=what)


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
        worker: whose network is trained.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
    """

    def __init__(self, worker: LerobotWorker, learning_rate: float, weight_decay: float) -> None:
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "betas": (0.9, 0.999), "eps": 1e-8}
        super().__init__([worker.anchor], defaults)
        self._worker = worker

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, there and here."""
        super().zero_grad(set_to_none)
        self._worker.zero_gradient()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with the gradients as the anchor's was clipped."""
        gradient = self._worker.anchor.grad
        if gradient is not None:
            self._worker.step(abs(float(gradient)), self.param_groups[0])

    def state_dict(self) -> dict[str, Any]:
        """Settings, and the worker's moments."""
        return {**super().state_dict(), "state": self._worker.read("optimizer")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`'s value."""
        super().load_state_dict({**state_dict, "state": {}})
        self._worker.write("optimizer", state_dict["state"])
