"""The worker process of a lerobot policy, and its weights, gradients and optimiser for the core's training loops.

The loops have one parameter, the *anchor*. After a backward pass its gradient is the norm of the network's gradient, so
that clipping it by its norm clips the network's. :class:`WorkerAdamW` sends the clipped scale with its step.
"""

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
TIMEOUT_S = 1800.0  # longest silence: a VLA of billions of weights on a CPU is slow, and its loading slower
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""A policy is its folder: no download at run time."""


def lerobot_python() -> str:
    """Interpreter with a supported lerobot: this or ``worldrl setup lerobot``'s; WorkerEnvironmentError."""
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
    """Launch of a policy's worker."""
    threads = torch.get_num_threads()
    options = {"folder": str(folder.resolve()), "device": device, "threads": threads}
    return Launch(f"policy {folder}", lerobot_python(), TARGET, options, {**OFFLINE, "OMP_NUM_THREADS": str(threads)})


class LerobotWorker:
    """A policy's worker process, with the ``facts`` of its network; WorkerError: it cannot be started or serve.

    ``anchor`` is the parameter that represents the network's trained weights.
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
        except WorkerDied as reason:
            self.close()
            raise WorkerError(
                f"{self.launch.name}: its worker {reason}; start the command again, it resumes"
            ) from reason

    def close(self) -> None:
        """End the process."""
        self._stop()

    # --- gradients -------------------------------------------------------------------------------------------------

    def with_gradient(self, value: Tensor, keep: bool) -> Tensor:
        """Connect a value that the worker kept to a backward pass here; unchanged without ``keep``."""
        return _Remote.apply(self.anchor, value, self._backward) if keep else value

    def _backward(self, gradient: Tensor) -> Tensor:
        """Add to the network's gradient; return the growth of its norm, so that the anchor's gradient is the norm."""
        _, found = self.ask("backward", {"gradient": gradient.contiguous().numpy()})
        before, self._norm = self._norm, float(found["norm"])
        return torch.tensor(self._norm - before)

    def zero_gradient(self) -> None:
        """Forget the network's gradient."""
        self.ask("zero")
        self._norm = 0.0

    def step(self, scaled_norm: float, group: Mapping[str, Any]) -> None:
        """Take one AdamW step in the worker with gradients scaled to a norm."""
        scale = scaled_norm / self._norm if self._norm else 0.0
        options = {name: group[name] for name in ("lr", "weight_decay", "eps", "betas")}
        self.ask("step", scale=scale, **options)

    # --- weights and moments ---------------------------------------------------------------------------------------

    def read(self, what: str) -> dict[str, Tensor]:
        """Fetch ``weights`` (trained ones and moving buffers) or the ``optimizer``'s moments, by name."""
        return {name: torch.from_numpy(value) for name, value in self.ask("read", what=what)[1].items()}

    def write(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Restore :meth:`read`'s value."""
        self.ask("write", {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, what=what)


class _Remote(torch.autograd.Function):
    """A value computed in the worker: its gradient is sent there, and the anchor's gradient is returned."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, send: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.send = send
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.send(gradient[0]), None, None


class WorkerAdamW(torch.optim.Optimizer):
    """AdamW with parameters and moments in the worker; here are the anchor, the learning rate and the betas."""

    def __init__(self, worker: LerobotWorker, learning_rate: float, weight_decay: float) -> None:
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "betas": (0.9, 0.999), "eps": 1e-8}
        super().__init__([worker.anchor], defaults)
        self._worker = worker

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, in the worker and here."""
        super().zero_grad(set_to_none)
        self._worker.zero_gradient()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with the network's gradients scaled as the anchor's was clipped."""
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
