"""A training in several processes, in several passes per step, or both: equal to one process with the same batch.

A step's batch is divided into ``processes x accumulate`` equal parts. Every process draws the numbers of the whole batch
from the step's stream and keeps the rows of its part (``core.rng.Part``). So neither the windows nor the noise depend on
the number of parts. Sums over masked elements are divided by the count of the whole batch, which every process knows.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import Part
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.blocks import checkpointed_blocks
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import Loss, OneProcess
from worldrl.core.training.loop import Training
from worldrl.core.training.processes import in_group, total, wait
from worldrl.core.training.ranks import DeviceSettings, rank, world_size

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def spread(settings: DeviceSettings, *, unused: bool = False, **batches: int) -> OneProcess:
    """Choose how a training is divided; SettingError where a batch, given by its setting's name, does not divide.

    Several processes count where they have met (``processes.joined``). ``unused``: a step may leave weights without a
    gradient, which costs DDP a search in every step.
    """
    processes = world_size() if in_group() else 1
    parts = processes * settings.accumulate
    for name, batch in batches.items():
        if batch % parts:
            below, above = batch // parts * parts, -(-batch // parts) * parts
            near = " or ".join(str(value) for value in (below, above) if value)
            raise SettingError(
                f"training.{name}={batch} does not divide into {parts} equal parts ({processes} processes x "
                f"training.accumulate={settings.accumulate}); give training.{name}={near}"
            )
    if settings.sharded and processes == 1:
        raise SettingError(
            "sharded=true divides the weights over several processes, and this is one; leave it out, or start a command that trains "
            "in several by torchrun"
        )
    if parts == 1 and not settings.activation_checkpointing:
        return OneProcess()
    return Spread(settings, processes, unused)


class _LossModule(nn.Module):
    """The loss of a step as a forward pass: what DDP needs to follow gradients."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.trained = nn.ModuleDict(dict(modules))

    def forward(self, loss: Loss, step: int) -> tuple[Tensor, Logs]:
        """Return the loss and scalars of the running part."""
        return loss(step)


class Spread(OneProcess):
    """The passes of this process, and the group that it belongs to, if any."""

    def __init__(self, settings: DeviceSettings, processes: int, unused: bool) -> None:
        self.settings, self.processes, self.unused = settings, processes, unused
        self.number = rank() if processes > 1 else 0
        self.first = self.number == 0
        self.parts = processes * settings.accumulate
        self.module: Any = None
        self.divide: Callable[[], None] = lambda: None

    @contextmanager
    def prepared(
        self, name: str, modules: Mapping[str, nn.Module], optimizer: Optimizer, ema: Ema | None
    ) -> Generator[None]:
        """Wrap the modules for gradients that are averaged over the processes."""
        refuse_batch_norm(name, modules)
        self.module = _LossModule(modules)
        with ExitStack() as stack:
            if self.settings.activation_checkpointing:
                stack.enter_context(checkpointed_blocks(self.module))
            if self.settings.sharded:
                from worldrl.core.training.sharded import sharded

                roots = [self.module] if ema is None else [self.module, _LossModule({"average": ema.module})]
                # Once resumed: a checkpoint is whole.
                self.divide = lambda: stack.enter_context(sharded(roots, optimizer, device_of(optimizer).type))
            elif self.processes > 1:
                self.module = nn.parallel.DistributedDataParallel(self.module, find_unused_parameters=self.unused)
            yield
        self.module, self.divide = None, lambda: None

    def training(
        self,
        name: str,
        folder: Path | None,
        log: MetricLog | None,
        modules: Mapping[str, nn.Module],
        optimizer: Optimizer,
    ) -> Training:
        """Let the first process write, and all read."""
        return _Together(name, folder, log, modules, {"optimizer": optimizer}, spread=self)

    def wait(self) -> None:
        """Wait for the other processes."""
        if self.processes > 1:
            wait()

    def backward(self, loss: Loss, step: int) -> tuple[Tensor, Logs]:
        """Add the gradients of all parts; return loss and scalars of the whole batch."""
        passes = self.settings.accumulate
        names, rows = list[str](), list[Tensor]()
        for number in range(passes):
            self.part = Part(self.number * passes + number, self.processes * passes)
            with self._gradients_stay(number + 1 < passes):
                value, logs = self.module(loss, step)
                torch.autograd.backward(value / passes)
            names = list(logs)
            rows.append(torch.stack([value.detach().float(), *(logs[key].float() for key in names)]))
        sums = torch.stack(rows).sum(dim=0)
        means = (total(sums) if self.processes > 1 else sums) / self.parts
        return means[0], dict(zip(names, means[1:], strict=True))

    def norm(self, parameters: list[Tensor], limit: float | None) -> Tensor:
        """Return the norm over all processes."""
        found = super().norm(parameters, limit)
        if not self.settings.sharded:
            return found
        from worldrl.core.training.sharded import whole_tensor

        return whole_tensor(found)

    def clip(self, parameters: list[Tensor], limit: float, norm: Tensor) -> None:
        """Clip the gradients, of which each process may hold parts."""
        if not self.settings.sharded:
            super().clip(parameters, limit, norm)
            return
        from worldrl.core.training.sharded import clip_parts

        clip_parts(parameters, limit, norm)

    def _gradients_stay(self, stay: bool) -> Any:
        """Leave the gradients in this process until the last pass."""
        if self.settings.sharded:
            self.module.set_requires_gradient_sync(not stay)
            return nullcontext()
        return self.module.no_sync() if stay and self.processes > 1 else nullcontext()


def refuse_batch_norm(name: str, modules: Mapping[str, nn.Module]) -> None:
    """SettingError for modules whose result depends on how a batch is divided."""
    for module in modules.values():
        if any(isinstance(child, BATCH_NORMS) for child in module.modules()):
            raise SettingError(
                f"{name}: batch normalisation measures each part of a batch by itself; train this model in one process with "
                "training.accumulate=1, or choose a backbone without it"
            )


@dataclass(frozen=True, kw_only=True)
class _Together(Training):
    """A training that the first process writes and all read."""

    spread: Spread

    def agreed(self, stop: bool) -> bool:
        """Whether any process says so; all of them must stop together."""
        if self.spread.processes == 1:
            return stop
        return bool(total(torch.tensor(float(stop), device=self._device())))

    def resume(self) -> tuple[int, tuple[str, ...]]:
        """Read the newest checkpoint; the first process before the others, since it also repairs the folder."""
        if self.spread.first:
            found = super().resume()
            self.spread.wait()
        else:
            self.spread.wait()
            found = super().resume()
        if self.spread.processes > 1:
            steps = total(torch.tensor([float(found[0])], device=self._device()))
            if float(steps) != found[0] * self.spread.processes:
                raise SettingError(
                    f"{self.folder}: the processes find different checkpoints there, {found[0]} steps in process "
                    f"{self.spread.number}; give a run_dir that all of them share"
                )
        self.spread.divide()
        return found

    def save(self, position: int) -> None:
        """Write a checkpoint, and wait for it."""
        whole = self._gathered() if self.spread.settings.sharded else self
        if self.spread.first:
            Training.save(whole, position)
        self.spread.wait()

    def _gathered(self) -> Training:
        """Gather what the processes hold in parts."""
        from worldrl.core.training.sharded import WholeModule, whole_optimizer

        modules = {name: WholeModule(module) for name, module in self.modules.items()}
        optimizers = {name: whole_optimizer(optimizer) for name, optimizer in self.optimizers.items()}
        return replace(self, modules=modules, optimizers=optimizers)

    def _device(self) -> torch.device:
        return device_of(self.optimizers["optimizer"])


def device_of(optimizer: Optimizer) -> torch.device:
    """Where an optimizer's first weight is."""
    return optimizer.param_groups[0]["params"][0].device
