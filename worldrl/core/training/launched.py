"""Training in the processes of ``accelerate launch`` or ``torchrun``; the first one writes whole tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.interfaces import Logs, Stateful
from worldrl.core.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import Loss, OneProcess
from worldrl.core.training.loop import Training


@dataclass(frozen=True)
class LaunchedProcesses(OneProcess):
    """The processes that an Accelerator knows."""

    accelerator: Any  # prepared `wrapped` and the optimizer
    wrapped: Any  # the trained parts as Accelerate wrapped them
    passes: int = 1  # losses per step; the loss of step `k` is called with `k passes`, `k passes + 1`, ...
    beside: Mapping[str, Stateful] | None = None  # what the first process alone has, and checkpoints hold

    def training(
        self,
        name: str,
        folder: Path | None,
        log: MetricLog | None,
        modules: Mapping[str, nn.Module],
        optimizer: Optimizer,
    ) -> Training:
        """Store the whole state, which the first process gathers."""
        return _Gathered(name, folder, log, modules, {"optimizer": optimizer}, processes=self)

    def backward(self, loss: Loss, step: int) -> tuple[Tensor, Logs]:
        """Sum the gradients of all passes; return loss and scalars, averaged over passes and processes."""
        sums: dict[str, Tensor] = {}
        for number in range(self.passes):
            with self.accelerator.accumulate(self.wrapped):
                value, logs = loss(step * self.passes + number)
                self.accelerator.backward(value)
                for name, scalar in {"loss": value.detach(), **logs}.items():
                    sums[name] = sums.get(name, 0) + scalar.float() / self.passes
        means = self.accelerator.reduce(sums, reduction="mean")
        return means.pop("loss"), means

    def norm(self, parameters: list[Tensor], limit: float | None) -> Tensor:
        """Measure and clip at once, as Accelerate does."""
        return self.accelerator.clip_grad_norm_(
            list(self.wrapped.parameters()), float("inf") if limit is None else limit
        )

    def clip(self, parameters: list[Tensor], limit: float, norm: Tensor) -> None:
        """Leave them; :meth:`norm` has clipped."""


@dataclass(frozen=True)
class _Gathered(Training):
    """A training whose whole state the first process writes and reads."""

    processes: LaunchedProcesses = field(kw_only=True)

    def agreed(self, stop: bool) -> bool:
        """Whether any process says so; all of them must stop together."""
        accelerator = self.processes.accelerator
        return bool(accelerator.reduce(torch.tensor(float(stop), device=accelerator.device)))

    def save(self, position: int) -> None:
        """Gather the whole state to the first process, which writes it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        if self.log is not None:
            self.log.flush()
        if self.folder is None:
            return
        accelerator, wrapped = self.processes.accelerator, self.processes.wrapped
        weights, optimizer = get_state_dict(wrapped, _inner(self.optimizers["optimizer"]), options=_options())
        if accelerator.is_main_process:
            beside = {name: dict(part.state_dict()) for name, part in (self.processes.beside or {}).items()}
            extra = {"weights": weights, "optimizer": optimizer, "rollouts": {}, **beside}
            save_checkpoint(self.folder, position, modules={}, optimizers={}, extra=extra)
        accelerator.wait_for_everyone()

    def resume(self) -> tuple[int, tuple[str, ...]]:
        """Let the first process read the newest checkpoint, and all take it over."""
        accelerator = self.processes.accelerator
        found = newest(self.folder) if self.folder is not None and accelerator.is_main_process else None
        step = int(accelerator.reduce(torch.tensor(found.step if found else 0, device=accelerator.device)))
        if step:
            self._take_over({"weights": {}, "optimizer": {}} if found is None else found.extra)
        if found is not None:
            for name, part in (self.processes.beside or {}).items():
                part.load_state_dict(found.extra[name])
        if self.log is not None:
            self.log.truncate(self.name, step)
        return step, () if found is None else found.skipped

    def _take_over(self, state: Mapping[str, Any]) -> None:
        """Load weights and optimizer, of which processes other than the first have none."""
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        accelerator, wrapped = self.processes.accelerator, self.processes.wrapped
        options = _options(broadcast_from_rank0=accelerator.num_processes > 1, strict=False)
        # Not set_state_dict: it leaves the weights out where a process gives none, while the first one broadcasts them.
        set_optimizer_state_dict(wrapped, _inner(self.optimizers["optimizer"]), state["optimizer"], options=options)
        set_model_state_dict(wrapped, state["weights"], options=options)


def newest(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint of such a training: ``weights`` and ``optimizer`` are in its ``extra``."""
    return load_checkpoint(folder, modules={}, optimizers={})


def _inner(optimizer: Any) -> Optimizer:
    return optimizer.optimizer


def _options(**more: Any) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, **more)
