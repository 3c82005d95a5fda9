"""Training by gradient steps: codec, world model and policy all learn through :func:`fit`.

Step ``k`` uses the weights, the optimizer's state and ``k`` alone: the loss draws from ``rng.stream(seed, name, k)``.
So a killed run continues bit for bit from its newest checkpoint (same machine, same number of threads).
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import WHOLE, Part
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.ema import Ema
from worldrl.core.training.loop import Training, every, repeat
from worldrl.core.training.optimizer import Schedule, constant, warmup_cosine

Loss = Callable[[int], tuple[Tensor, Logs]]  # Maps the step to a scalar loss with gradient, and detached scalars to log


@dataclass(frozen=True)
class FitReport:
    """What :func:`fit` did."""

    name: str  # as given
    steps: int  # steps taken in all
    resumed_from: int  # the step this session began with; 0 for a fresh start
    wall_s: float  # seconds of this session
    # The last step's logged scalars; empty when nothing was left to do.
    logs: dict[str, float] = field(default_factory=dict[str, float])
    skipped: tuple[str, ...] = ()  # why damaged checkpoints were passed over


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
    processes: "OneProcess | None" = None,
) -> FitReport:
    """Train until ``steps`` steps in all have been taken, resuming from the newest checkpoint in ``folder``, if any.

    ``modules`` are what a checkpoint must hold; the ``schedule`` scales the optimizer's rates; without ``clip_norm``
    the gradients' norm is only measured. The log gets ``loss``, ``grad_norm``, ``lr`` and the loss's own scalars.
    ``processes`` computes gradients and stores the state where several processes train together.

    NonFiniteError leaves the weights before the step. ArtefactError for damaged or other checkpoints, SettingError for
    a number out of range, KeyboardInterrupt after Ctrl-C, once the running step is complete and saved.
    """
    counts = {"steps": steps, "every_checkpoint": every_checkpoint, "every_log": every_log}
    for count, value in counts.items():
        if value < 1:
            raise SettingError(f"{name}: {count} must be at least 1, got {value}")
    saved = {**modules} if ema is None else {**modules, "ema": ema}
    spread = processes or OneProcess()
    stepper = _Stepper(name, modules, optimizer, loss, schedule, clip_norm, ema, spread, log, every_log, steps)

    def take(step: int, progress: Progress) -> int:
        loss = stepper.logged_step(step)
        if on_step is not None:
            on_step(step)
        progress.advance(note=f"loss {loss:.4g}")
        return step + 1

    try:
        with spread.prepared(name, modules, optimizer, ema):
            training = spread.training(name, folder, log, saved, optimizer)
            session = repeat(training, take, steps, due=every(every_checkpoint))
    finally:
        stepper.scale_rates(1)  # another training may begin with this optimizer
    return FitReport(name, session.last, session.first, session.wall_s, stepper.logs, session.skipped)


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
    processes: "OneProcess | None" = None,
) -> FitReport:
    """Train one module as most are: warm-up (cut to ``steps``), half a cosine to ``final``, clipped gradients.

    The module is in evaluation mode afterwards, with averaged weights where ``ema_decay`` is not 0; ``part`` is its
    name in checkpoints. The rest is as of :func:`fit`.
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
        processes=processes,
    )
    if ema is not None:
        module.load_state_dict(ema.module.state_dict())
    module.eval()
    return report


class OneProcess:
    """How a step's gradients are computed, and the training is stored, in the one process of most trainings.

    ``part`` is the part of the batch's rows that the running call of the loss computes.
    """

    part: Part = WHOLE
    first = True  # whether this process writes
    parts = 1  # equal parts of each batch

    def prepared(
        self, name: str, modules: Mapping[str, nn.Module], optimizer: Optimizer, ema: Ema | None
    ) -> AbstractContextManager[None]:
        """Spread modules, optimizer and average over devices while they are trained."""
        return nullcontext()

    def wait(self) -> None:
        """Wait until every process is here."""

    def training(
        self,
        name: str,
        folder: Path | None,
        log: MetricLog | None,
        modules: Mapping[str, nn.Module],
        optimizer: Optimizer,
    ) -> Training:
        """Store modules and optimizer as they are."""
        return Training(name, folder, log, modules, {"optimizer": optimizer})

    def backward(self, loss: Loss, step: int) -> tuple[Tensor, Logs]:
        """Compute the gradients of one loss."""
        value, logs = loss(step)
        torch.autograd.backward(value)
        return value, logs

    def norm(self, parameters: list[Tensor], limit: float | None) -> Tensor:
        """Return the gradients' norm, which several processes may then have clipped to ``limit`` already."""
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def clip(self, parameters: list[Tensor], limit: float, norm: Tensor) -> None:
        """Clip the gradients of ``norm``."""
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)


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


@dataclass
class _Stepper:
    """Takes gradient steps; the optimizer's learning rates are the base that the schedule scales."""

    name: str
    modules: Mapping[str, nn.Module]
    optimizer: Optimizer
    loss: Loss
    schedule: Schedule
    clip_norm: float | None
    ema: Ema | None
    processes: OneProcess
    log: MetricLog | None
    every_log: int
    steps: int

    def __post_init__(self) -> None:
        self.logs: dict[str, float] = {}
        self.rates = [group["lr"] for group in self.optimizer.param_groups]  # before a checkpoint brings scaled ones

    def scale_rates(self, factor: float) -> None:
        """Set each group's learning rate to ``factor`` of its base."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def logged_step(self, step: int) -> float:
        """Take a step and log it where that is due; return its loss."""
        scalars = self.step(step)
        if (step + 1) % self.every_log == 0 or step + 1 == self.steps:
            self.logs = scalars.floats()
            if self.log is not None:
                self.log.write(self.name, step, self.logs)
        return scalars.loss

    def step(self, step: int) -> _Scalars:
        """Take one; NonFiniteError before the weights change."""
        groups = self.optimizer.param_groups
        self.scale_rates(self.schedule(step))
        self.optimizer.zero_grad(set_to_none=True)
        value, logs = self.processes.backward(self.loss, step)
        parameters = [parameter for group in groups for parameter in group["params"]]
        norm = self.processes.norm(parameters, self.clip_norm).to(value.device)
        both = torch.stack([value.detach().float(), norm.float()]).cpu()  # the step's only wait for the device
        scalars = _Scalars(float(both[0]), float(both[1]), groups[-1]["lr"], logs)
        self._check_finite(step, scalars.loss, scalars.grad_norm)
        if self.clip_norm is not None:
            self.processes.clip(parameters, self.clip_norm, norm)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update()
        return scalars

    def _check_finite(self, step: int, loss: float, norm: float) -> None:
        fix = "lower the learning rate or clip_norm, or check this step's batch; the last checkpoint is intact"
        if not math.isfinite(loss):
            raise NonFiniteError(f"{self.name}: loss is {loss} at step {step}; {fix}")
        if not math.isfinite(norm):
            where = self._first_nonfinite()
            raise NonFiniteError(f"{self.name}: gradient norm is {norm} at step {step} (first in {where}); {fix}")

    def _first_nonfinite(self) -> str:
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                    return f"{name}.{key}"
        return "the norm itself: the sum of squares overflows"
