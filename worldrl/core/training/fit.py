"""The one training loop: codec, world model and policy all learn through :func:`fit`.

Step ``k`` uses nothing but the weights, the optimizer's state and ``k``: the loss draws its batch and noise from
``rng.stream(seed, name, k)``. A run that is killed and started again therefore continues bit for bit, with the
same logged losses, from its newest checkpoint. (Same machine, same number of threads.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.storage.interrupts import interrupts
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.ema import Ema
from worldrl.core.training.optimizer import Schedule, constant, warmup_cosine

Loss = Callable[[int], tuple[Tensor, Logs]]
"""Maps the step to a scalar loss with gradient, and detached scalars to log."""


@dataclass(frozen=True)
class FitReport:
    """What :func:`fit` did.

    Attributes:
        name: as given.
        steps: steps taken in all.
        resumed_from: the step this session began with; 0 for a fresh start.
        wall_s: seconds of this session.
        logs: the last step's logged scalars; empty when nothing was left to do.
        skipped: why damaged checkpoints were passed over.
    """

    name: str
    steps: int
    resumed_from: int
    wall_s: float
    logs: dict[str, float] = field(default_factory=dict[str, float])
    skipped: tuple[str, ...] = ()


def fit(
    name: str,
    *,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer,
    loss: Loss,
    steps: int,
    folder: Path | None = None,
    every_checkpoint: int = 500,
    schedule: Schedule = constant,
    clip_norm: float | None = None,
    log: MetricLog | None = None,
    every_log: int = 1,
    ema: Ema | None = None,
    on_step: Callable[[int], None] | None = None,
) -> FitReport:
    """Train until ``steps`` steps have been taken, resuming from the newest checkpoint in ``folder``.

    Args:
        name: of the training, used as series in the log and in messages.
        modules: everything the checkpoint must hold, by name; the optimizer's parameters lie in them.
        optimizer: its groups' learning rates are the base the schedule scales.
        loss: called once per step with the step's index.
        steps: in all, counting those taken before a resume.
        folder: of the checkpoints; None trains without.
        every_checkpoint: steps between checkpoints; one more is saved at the end.
        schedule: factor on the learning rate by step.
        clip_norm: largest gradient norm; None measures it only.
        log: receives ``loss``, ``grad_norm``, ``lr`` and the loss's own scalars.
        every_log: steps between log lines; the last step is always logged.
        ema: updated after each step and kept in the checkpoint.
        on_step: called with the step's index after it is complete.

    Returns:
        What was done.

    Raises:
        NonFiniteError: the loss or the gradient norm is not finite; the weights are those before that step.
        ArtefactError: the checkpoints are damaged or belong to other modules, or the disk refuses.
        SettingError: a number out of range.
        KeyboardInterrupt: after Ctrl-C, once the step in flight is complete and saved.
    """
    _check_counts(name, steps=steps, every_checkpoint=every_checkpoint, every_log=every_log)
    state = _State(name, dict(modules), optimizer, ema, folder, log)
    first, skipped = state.resume()
    began, logs = time.monotonic(), dict[str, float]()
    with Progress(name, steps, start=first) as progress, interrupts() as interrupted:
        for step in range(first, steps):
            scalars = _train_step(state, loss, step, schedule(step), clip_norm)
            if (step + 1) % every_log == 0 or step + 1 == steps:
                logs = state.write(step, scalars)
            if on_step is not None:
                on_step(step)
            progress.advance(note=scalars.note)
            stop = interrupted()
            if stop or (step + 1) % every_checkpoint == 0 or step + 1 == steps:
                state.save(step + 1)
            if stop:
                raise KeyboardInterrupt
    return FitReport(name, max(steps, first), first, time.monotonic() - began, logs, skipped)


def fit_module(
    name: str,
    module: nn.Module,
    loss: Loss,
    *,
    part: str,
    optimizer: Optimizer,
    steps: int,
    warmup: int,
    final: float = 0.01,
    clip_norm: float = 1.0,
    ema_decay: float = 0.0,
    every_checkpoint: int = 500,
    every_log: int = 10,
    folder: Path | None,
    log: MetricLog | None,
    on_step: Callable[[int], None] | None = None,
) -> FitReport:
    """Train one module as most are: a short rise and half a cosine of the learning rate, clipped gradients.

    It is in training mode meanwhile, and in evaluation mode afterwards. Errors and resuming are those of :func:`fit`.

    Args:
        name: of the training.
        module: what learns, all of it.
        loss: called once per step with the step's index.
        part: the module's name in checkpoints and messages.
        optimizer: of its parameters, with the learning rate after the rise.
        steps: in all.
        warmup: steps of the rise; cut to fewer than ``steps``.
        final: factor on the learning rate at the end.
        clip_norm: largest gradient norm.
        ema_decay: of the averaged weights that the module ends with; 0 leaves it the last ones.
        every_checkpoint: steps between checkpoints.
        every_log: steps between log lines.
        folder: of the checkpoints; None trains without.
        log: receives what :func:`fit` logs.
        on_step: called with the step's index after it is complete.
    """
    module.train()
    ema = Ema(module, ema_decay) if ema_decay else None
    report = fit(
        name,
        modules={part: module},
        optimizer=optimizer,
        loss=loss,
        steps=steps,
        folder=folder,
        every_checkpoint=every_checkpoint,
        schedule=warmup_cosine(steps, min(warmup, steps - 1), final=final),
        clip_norm=clip_norm,
        log=log,
        every_log=every_log,
        ema=ema,
        on_step=on_step,
    )
    if ema is not None:
        module.load_state_dict(ema.module.state_dict())
    module.eval()
    return report


def _check_counts(name: str, **counts: int) -> None:
    for field_name, value in counts.items():
        if value < 1:
            raise SettingError(f"{name}: {field_name} must be at least 1, got {value}")


@dataclass(frozen=True)
class _Scalars:
    """One step's scalars; the first two are on the host already."""

    loss: float
    grad_norm: float
    lr: float
    logs: Logs

    def floats(self) -> dict[str, float]:
        own = {"loss": self.loss, "grad_norm": self.grad_norm, "lr": self.lr}
        return own | {key: float(value) for key, value in self.logs.items()}

    @property
    def note(self) -> str:
        return f"loss {self.loss:.4g}"


@dataclass(frozen=True)
class _State:
    """Everything a checkpoint of one training holds."""

    name: str
    modules: dict[str, nn.Module]
    optimizer: Optimizer
    ema: Ema | None
    folder: Path | None
    log: MetricLog | None

    @property
    def parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def resume(self) -> tuple[int, tuple[str, ...]]:
        """Load the newest checkpoint; return the next step and what was skipped."""
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        found = None
        if self.folder is not None:
            found = load_checkpoint(self.folder, modules=self._saved(), optimizers={"optimizer": self.optimizer})
        step = 0 if found is None else found.step
        if self.log is not None:
            self.log.truncate(self.name, step)
        return step, () if found is None else found.skipped

    def write(self, step: int, scalars: _Scalars) -> dict[str, float]:
        """Log a step's scalars; return them."""
        logs = scalars.floats()
        if self.log is not None:
            self.log.write(self.name, step, logs)
        return logs

    def save(self, step: int) -> None:
        if self.log is not None:
            self.log.flush()  # first the log: it may know more steps than the checkpoint, never fewer
        if self.folder is not None:
            save_checkpoint(self.folder, step, modules=self._saved(), optimizers={"optimizer": self.optimizer})

    def _saved(self) -> dict[str, nn.Module]:
        return self.modules if self.ema is None else {**self.modules, "ema": self.ema}


def _train_step(state: _State, loss: Loss, step: int, factor: float, clip_norm: float | None) -> _Scalars:
    for group in state.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    state.optimizer.zero_grad(set_to_none=True)
    value, logs = loss(step)
    torch.autograd.backward(value)
    norm = nn.utils.get_total_norm([p.grad for p in state.parameters if p.grad is not None]).to(value.device)
    both = torch.stack([value.detach().float(), norm.float()]).cpu()  # the step's only wait for the device
    scalars = _Scalars(float(both[0]), float(both[1]), state.optimizer.param_groups[0]["lr"], logs)
    _check_finite(state, step, scalars.loss, scalars.grad_norm)
    if clip_norm is not None:
        nn.utils.clip_grads_with_norm_(state.parameters, clip_norm, norm)
    state.optimizer.step()
    if state.ema is not None:
        state.ema.update()
    return scalars


def _check_finite(state: _State, step: int, loss: float, norm: float) -> None:
    fix = "lower the learning rate or clip_norm, or check this step's batch; the last checkpoint is intact"
    if not math.isfinite(loss):
        raise NonFiniteError(f"{state.name}: loss is {loss} at step {step}; {fix}")
    if not math.isfinite(norm):
        where = _first_nonfinite(state)
        raise NonFiniteError(f"{state.name}: gradient norm is {norm} at step {step} (first in {where}); {fix}")


def _first_nonfinite(state: _State) -> str:
    for name, module in state.modules.items():
        for key, parameter in module.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return f"{name}.{key}"
    return "the norm itself: the sum of squares overflows"
