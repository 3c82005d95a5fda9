"""Training of the Wan world model: the loop and the losses of the video world model, through Accelerate.

Launched by ``accelerate launch`` or ``torchrun``, every process runs the same job; the first one alone writes. What is
kept of the launcher's configuration is how the model is spread (DDP, FSDP); number type and accumulation are settings.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.interfaces import Logs
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, fit
from worldrl.core.training.launched import LaunchedProcesses, newest
from worldrl.core.training.optimizer import warmup_cosine
from worldrl.core.types import Episode
from worldrl.data.windows.windows import WindowBatch, WindowSampler
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import chunk_loss, window_state
from worldrl.world_models.video.training import WindowLoss, latent_rollouts, recorded_states
from worldrl.world_models.wan.adapter import is_published
from worldrl.world_models.wan.folder import EXTRA
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import WanTraining, take


class TrainedParts(nn.Module):
    """The trained parts of a world model with their loss as forward pass, under the model's names: for Accelerate."""

    def __init__(self, model: WanWorldModel):
        super().__init__()
        self.dynamics, self.success, self.state_head = model.dynamics, model.success, model.state_head
        self._no_split_modules = list(model.dynamics._no_split_modules)
        self._model = (model,)  # a tuple hides it from nn.Module

    def forward(
        self, batch: WindowBatch, generator: torch.Generator, *, depth: int, hidden: Tensor | None, own: bool
    ) -> tuple[Tensor, Logs]:
        """Return the scalar loss and detached scalars to log; see ``WindowPart``."""
        (model,) = self._model
        state, target = window_state(batch)
        denoise = partial(model.dynamics.loss, own=own)
        return chunk_loss(model, state, batch, target, depth, generator, denoise, hidden)


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
    """Train in place, resuming from ``folder`` (None saves nothing); a sharded model needs :func:`whole` afterwards.

    Episodes and folder are the same in every process; ``log`` is the first one's. Raises MissingExtraError:
    accelerate is not installed; NonFiniteError: the gradient is not finite; the last checkpoint is intact;
    SettingError: number types of training and published weights do not fit, or rollouts of a sharded model. Ctrl-C
    raises once the step is saved.
    """
    accelerator = start_accelerator(config, device, model.config.dynamics.base_dtype)
    process, passes = accelerator.process_index, config.accumulate
    model.codec.to(accelerator.device)
    sampler = clip_sampler(model, episodes, config, process=process, processes=accelerator.num_processes)
    scale_state(model, sampler)
    rollouts = latent_rollouts(model, sampler, config)
    wrapped, optimizer = prepare(model, config, accelerator, rollouts is not None)
    draws = ClipDraws(passes, process)
    beside = {} if rollouts is None else {"rollouts": rollouts}
    report = fit(
        series,
        modules={"parts": wrapped},
        optimizer=optimizer,
        loss=WindowLoss(model, sampler, config, instructions, seed, rollouts, wrapped, draws, split=True),
        steps=config.steps,
        folder=folder,
        every_checkpoint=config.checkpoint_every,
        schedule=warmup_cosine(config.steps, min(config.warmup, config.steps - 1), final=config.final_rate),
        clip_norm=config.clip_norm,
        log=log,
        every_log=10,
        processes=LaunchedProcesses(accelerator, wrapped, passes, beside),
    )
    finish(model, accelerator, wrapped)
    return report


@dataclass(frozen=True)
class ClipDraws:
    """Names the random stream of a pass: by step, pass within the step, and process."""

    passes: int
    process: int = 0

    def __call__(self, number: int) -> tuple[str | int, ...]:
        """Return the names for the ``number``-th pass of the training."""
        return ("wan", *divmod(number, self.passes), self.process)


def clip_sampler(
    model: WanWorldModel, episodes: Sequence[Episode], config: WanTraining, *, process: int = 0, processes: int = 1
) -> WindowSampler:
    """Make the sampler of a process, which keeps every ``processes``-th episode in memory.

    Raises SettingError: fewer episodes than processes, none of the kind that a share asks for, or rollouts in several
    processes.
    """
    if len(episodes) < processes:
        raise SettingError(f"{len(episodes)} episodes do not give one to each of {processes} processes")
    if config.bootstrap_rows and processes > 1:
        raise SettingError(
            f"wan.training.bootstrap_rows={config.bootstrap_rows}: rollouts are kept by one process, {processes} were "
            "launched; launch one, or give bootstrap_rows=0"
        )
    dynamics = model.config.dynamics
    return WindowSampler(
        take(episodes, range(process, len(episodes), processes)),
        chunk_length=dynamics.chunk_length,
        memory_frames=dynamics.memory_frames,
        frame_stride=dynamics.frame_stride,
        first_chunk_share=config.first_chunk_share,
        static_share=config.static_share,
        event_share=config.event_share,
        images=model.config.cameras,
        robot=model.embodiment,
    )


def scale_state(model: WanWorldModel, sampler: WindowSampler) -> None:
    """Fit the state head's linear map to the episodes of the first process, in all of them."""
    if model.state_head is None:
        return
    from accelerate.utils import broadcast

    model.state_head.to(model.device).scale_to(*recorded_states(model, sampler.store))
    for value in model.state_head.buffers():
        value.copy_(broadcast(value.clone()))


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


def prepare(model: WanWorldModel, config: WanTraining, accelerator: Any, rollouts: bool) -> tuple[Any, Any]:
    """Wrap the trained parts and their optimizer; SettingError: there are ``rollouts``, and the launch shards."""
    transformer = model.dynamics.transformer
    if config.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if config.compile:
        transformer.compile_repeated_blocks()
    part = TrainedParts(model).train()
    optimizer = torch.optim.AdamW(parameter_groups(part, config), weight_decay=config.weight_decay, fused=True)
    wrapped, optimizer = accelerator.prepare(part, optimizer)
    if rollouts and is_sharded(model):
        raise SettingError(
            f"wan.training.bootstrap_rows={config.bootstrap_rows}: rollouts need all of the model in one place, and this launch "
            "shards it (FSDP); launch without, or give bootstrap=0 bootstrap_rows=0"
        )
    return wrapped, optimizer


def finish(model: WanWorldModel, accelerator: Any, wrapped: Any) -> None:
    """Give the model back as it was, on the device it was trained on."""
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    accelerator.free_memory()
    if accelerator.num_processes > 1:
        accelerator.end_training()  # what follows is the first process's alone
    model.dynamics.transformer.disable_gradient_checkpointing()
    model.eval()


def parameter_groups(part: nn.Module, config: WanTraining) -> list[dict[str, Any]]:
    """Sort the trained parameters by rate: what began as published weights, and what is new."""
    trained = [(name, parameter) for name, parameter in part.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in trained if is_published(name)], "lr": config.learning_rate},
        {"params": [p for name, p in trained if not is_published(name)], "lr": config.new_learning_rate},
    ]
    return [group for group in groups if group["params"]]


def finished_weights(folder: Path) -> dict[str, Tensor]:
    """Trained tensors of the newest checkpoint, for a model that was not sharded; SettingError: there is none."""
    found = newest(folder)
    if found is None:
        raise SettingError(f"{folder}: holds no checkpoint of a Wan world model")
    return found.extra["weights"]


def whole(model: WanWorldModel, folder: Path) -> WanWorldModel:
    """Return the model with all of its parameters here: itself, or, where it was sharded, a new one with its ensemble.

    Raises SettingError: it was sharded and ``folder`` holds no checkpoint.
    """
    if not is_sharded(model):
        return model
    fresh = WanWorldModel.from_base(model.base.folder, model.config, model.embodiment, seed=0).to(model.device)
    fresh.outcome = model.outcome
    ensemble = {name: value for name, value in model.trained().items() if name.startswith("outcome.")}
    fresh.load_trained(finished_weights(folder) | ensemble)
    return fresh


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds only a part of the parameters."""
    with suppress(ImportError):
        from torch.distributed.tensor import DTensor

        return any(isinstance(parameter, DTensor) for parameter in model.parameters())
    return False
