"""The Wan world model's training loop, through Accelerate: one process or many, sharded or not.

Launched by ``accelerate launch`` or ``torchrun``, every process runs the same job; the first one alone writes. What is
kept of the launcher's configuration is how the model is spread (DDP, FSDP); number type and accumulation are settings.
Checkpoints hold the trained tensors and the optimizer's state by parameter name, whole, as safetensors: a run may go on
with another number of processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.extras import require
from worldrl.core.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.fit import FitReport, interrupts
from worldrl.core.training.optimizer import Schedule, warmup_cosine
from worldrl.core.types import Episode
from worldrl.world_models.video.bootstrapping import LatentRollouts
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.wan.adapter import is_published
from worldrl.world_models.wan.folder import EXTRA
from worldrl.world_models.wan.losses import WanLoss
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import ClipSource, WanTraining


def fit_wan(
    model: WanWorldModel,
    episodes: Sequence[Episode],
    config: WanTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    device: torch.device,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "wan",
) -> FitReport:
    """Train in place, resuming from the newest checkpoint in ``folder``.

    Args:
        model: on any device; afterwards on the one it was trained on, or, where it was sharded, of no further use: see
            :func:`whole`.
        episodes: to learn from; the same in every process.
        config: settings.
        instructions: what can be said about each task.
        seed: of every draw.
        device: of this process.
        folder: of the checkpoints, the same in every process; None trains without.
        log: of the first process.
        series: names the training in the log.

    Returns:
        What was done.

    Raises:
        MissingExtraError: accelerate is not installed.
        NonFiniteError: the gradient is not finite; the last checkpoint is intact.
        SettingError: the number types of training and published weights do not fit, or rollouts are to be kept of a model that
            is sharded.
        KeyboardInterrupt: after Ctrl-C, once the step in flight is complete and saved.
    """
    accelerator = start_accelerator(config, device, model.config.dynamics.base_dtype)
    spread = {"process": accelerator.process_index, "processes": accelerator.num_processes}
    model.codec.to(accelerator.device)
    source = ClipSource(model, episodes, config, instructions, seed=seed, **spread)
    training = prepare(model, config, accelerator, source.rollouts)
    first, skipped = training.resume(folder)
    if log is not None:
        log.truncate(series, first)
    began, logs = time.monotonic(), dict[str, float]()
    schedule = warmup_cosine(config.steps, min(config.warmup, config.steps - 1), final=config.final_rate)
    with Progress(series, config.steps, start=first) as progress, interrupts() as interrupted:
        for step in range(first, config.steps):
            logs = training.step(source, step, schedule)
            if log is not None and ((step + 1) % 10 == 0 or step + 1 == config.steps):
                log.write(series, step, logs)
            progress.advance(note=f"loss {logs['loss']:.4g}")
            stop = training.anyone(interrupted())
            if stop or (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
                training.save(folder, step + 1, log)
            if stop:
                raise KeyboardInterrupt
    training.finish()
    return FitReport(series, max(config.steps, first), first, time.monotonic() - began, logs, skipped)


def start_accelerator(config: WanTraining, device: torch.device, base_dtype: str) -> Any:
    """Make the Accelerator; the launcher's environment tells it about the other processes."""
    accelerate = require("accelerate", extra=EXTRA)
    dtype = resolve_dtype(config.dtype, device)
    if dtype == torch.float32 and base_dtype != "float32":
        raise SettingError("wan.training.dtype must be bfloat16 beside wan.model.dynamics.base_dtype=bfloat16")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return accelerate.Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16" if dtype == torch.bfloat16 else "no",
        gradient_accumulation_steps=config.accumulate,
    )


def prepare(
    model: WanWorldModel, config: WanTraining, accelerator: Any, rollouts: LatentRollouts | None = None
) -> WanFit:
    """Wrap the trained parts and their optimizer for the processes there are; checkpoints hold ``rollouts`` too.

    Raises:
        SettingError: there are rollouts, and the launch shards the model, which they need whole.
    """
    transformer = model.dynamics.transformer
    if config.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if config.compile:
        transformer.compile_repeated_blocks()
    part = WanLoss(model).train()
    optimizer = torch.optim.AdamW(parameter_groups(part, config), weight_decay=config.weight_decay, fused=True)
    rates = tuple(group["lr"] for group in optimizer.param_groups)
    wrapped, optimizer = accelerator.prepare(part, optimizer)
    if rollouts is not None and is_sharded(model):
        raise SettingError(
            f"wan.training.bootstrap_rows={config.bootstrap_rows}: rollouts need all of the model in one place, and this launch "
            "shards it (FSDP); launch without, or give bootstrap=0 bootstrap_rows=0"
        )
    return WanFit(model, config, accelerator, wrapped, optimizer, rates, rollouts)


def parameter_groups(part: nn.Module, config: WanTraining) -> list[dict[str, Any]]:
    """Sort the trained parameters by rate: what began as published weights, and what is new."""
    trained = [(name, parameter) for name, parameter in part.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in trained if is_published(name)], "lr": config.learning_rate},
        {"params": [p for name, p in trained if not is_published(name)], "lr": config.new_learning_rate},
    ]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True)
class WanFit:
    """A training in progress.

    Attributes:
        model: in training.
        config: settings.
        accelerator: knows the processes.
        wrapped: the trained parts as Accelerate wrapped them.
        optimizer: likewise.
        rates: peak learning rate of each of its groups.
        rollouts: the model's own, where bootstrapped passes continue them.
    """

    model: WanWorldModel
    config: WanTraining
    accelerator: Any
    wrapped: Any
    optimizer: Any
    rates: tuple[float, ...]
    rollouts: LatentRollouts | None = None

    def step(self, source: ClipSource, step: int, schedule: Schedule) -> dict[str, float]:
        """Take one optimiser step; return its scalars, averaged over passes and processes."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * schedule(step)
        sums: dict[str, Tensor] = {}
        norm = torch.zeros(())
        for number in range(self.config.accumulate):
            clip = source.draw(step, number)
            with self.accelerator.accumulate(self.wrapped):
                loss, logs = self.wrapped(clip)
                self.accelerator.backward(loss)
                for name, value in {"loss": loss.detach(), **logs}.items():
                    sums[name] = sums.get(name, 0) + value.float() / self.config.accumulate
                if self.accelerator.sync_gradients:
                    norm = self._clip(step)
                self.optimizer.step()
                self.optimizer.zero_grad()
        means = self.accelerator.reduce(sums, reduction="mean")
        scalars = {name: float(value) for name, value in means.items()}
        return {**scalars, "grad_norm": float(norm), "lr": self.optimizer.param_groups[-1]["lr"]}

    def _clip(self, step: int) -> Tensor:
        norm = self.accelerator.clip_grad_norm_(list(self.wrapped.parameters()), self.config.clip_norm)
        if not math.isfinite(float(norm)):
            raise NonFiniteError(
                f"wan: gradient norm is {float(norm)} at step {step}; lower wan.training.learning_rate and "
                "new_learning_rate, or check this step's clips; the last checkpoint is intact"
            )
        return norm

    def anyone(self, flag: bool) -> bool:
        """Whether any process says so; all of them must stop together."""
        return bool(self.accelerator.reduce(torch.tensor(float(flag), device=self.accelerator.device)))

    def save(self, folder: Path | None, step: int, log: MetricLog | None) -> None:
        """Gather the whole state to the first process, which writes it."""
        if log is not None:
            log.flush()  # first the log: it may know more steps than the checkpoint, never fewer
        if folder is None:
            return
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, optimizer = get_state_dict(self.wrapped, self.optimizer.optimizer, options=_options())
        if self.accelerator.is_main_process:
            rollouts = {} if self.rollouts is None else dict(self.rollouts.state_dict())
            extra = {"weights": weights, "optimizer": optimizer, "rollouts": rollouts}
            save_checkpoint(folder, step, modules={}, optimizers={}, extra=extra)
        self.accelerator.wait_for_everyone()

    def resume(self, folder: Path | None) -> tuple[int, tuple[str, ...]]:
        """Let the first process read the newest checkpoint, and all take it over; return the next step."""
        found = _newest(folder) if folder is not None and self.accelerator.is_main_process else None
        many = self.accelerator.num_processes > 1
        step = int(self.accelerator.reduce(torch.tensor(found.step if found else 0, device=self.accelerator.device)))
        if not step:
            return 0, ()
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = {"weights": {}, "optimizer": {}} if found is None else found.extra
        set_state_dict(
            self.wrapped,
            self.optimizer.optimizer,
            model_state_dict=state["weights"],
            optim_state_dict=state["optimizer"],
            options=_options(broadcast_from_rank0=many, strict=False),
        )
        if self.rollouts is not None and found is not None:
            self.rollouts.load_state_dict(found.extra["rollouts"])
        return step, () if found is None else found.skipped

    def finish(self) -> None:
        """Give the model back as it was, on the device it was trained on."""
        self.accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        if self.accelerator.num_processes > 1:
            self.accelerator.end_training()  # what follows is the first process's alone
        self.model.dynamics.transformer.disable_gradient_checkpointing()
        self.model.eval()


def finished_weights(folder: Path) -> dict[str, Tensor]:
    """Return the trained tensors of the newest checkpoint, for a model that was not sharded.

    Raises:
        SettingError: there is none.
    """
    found = _newest(folder)
    if found is None:
        raise SettingError(f"{folder}: holds no checkpoint of a Wan world model")
    return found.extra["weights"]


def whole(model: WanWorldModel, folder: Path) -> WanWorldModel:
    """Return the model with all of its parameters in this process: itself, or, where it was sharded, a new one with its jury.

    Args:
        model: trained.
        folder: of its training's checkpoints.

    Raises:
        SettingError: it was sharded and ``folder`` holds no checkpoint.
    """
    if not is_sharded(model):
        return model
    fresh = WanWorldModel.from_base(model.base.folder, model.config, model.embodiment, seed=0).to(model.device)
    fresh.outcome = model.outcome
    jury = {name: value for name, value in model.trained().items() if name.startswith("outcome.")}
    fresh.load_trained(finished_weights(folder) | jury)
    return fresh


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds only a part of the parameters."""
    with suppress(ImportError):
        from torch.distributed.tensor import DTensor

        return any(isinstance(parameter, DTensor) for parameter in model.parameters())
    return False


def _newest(folder: Path) -> Checkpoint | None:
    return load_checkpoint(folder, modules={}, optimizers={})


def _options(**more: Any) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, **more)
