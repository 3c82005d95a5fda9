"""Training of the video world model: the codec on frames, then the dynamics with two heads on its latents.

The codec is frozen while the dynamics learn, so every frame is encoded once: on two cores that saves a third of each
step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.device import autocast as device_autocast
from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import on_device
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import FitReport, OneProcess, fit, fit_module
from worldrl.core.training.optimizer import adamw, warmup_cosine
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowLayout, gather_windows
from worldrl.data.windows.frame_store import FrameStore, in_blocks
from worldrl.data.windows.windows import WindowBatch, WindowSampler
from worldrl.world_models.video.bootstrapping import LatentRollouts
from worldrl.world_models.video.codec import IdentityCodec, to_unit
from worldrl.world_models.video.config import DynamicsConfig
from worldrl.world_models.video.instructions import TaskInstructions, hide_rows, relabel
from worldrl.world_models.video.losses import Denoise, chunk_loss, draw_depth, dynamics_loss, window_state
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining


def fit_codec(
    model: VideoWorldModel,
    frames: Tensor,
    config: WorldModelTraining,
    *,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
) -> FitReport:
    """Train the codec in place on uint8 frames ``[R, Y, X, 3]``; SettingError when it is the identity."""
    codec = model.codec
    if isinstance(codec, IdentityCodec):
        raise SettingError("codec.kind=identity has no weights to train; give codec_steps=0, or codec.kind=patch")

    divided = spread(config, codec_batch=config.codec_batch)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = divided.part.stream(seed, "codec", step)
        rows = torch.randint(len(frames), (config.codec_batch,), generator=generator)
        with autocast(model, config):
            return codec.loss(frames[rows.to(frames.device)].to(model.device), generator=generator)

    return fit_module(
        "codec",
        codec,
        loss,
        part="codec",
        optimizer=adamw(codec, config.codec_learning_rate, config.weight_decay),
        steps=config.codec_steps,
        warmup=config.warmup,
        final=0.02,
        clip_norm=config.clip_norm,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
        processes=divided,
    )


def fit_dynamics(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "dynamics",
) -> FitReport:
    """Train dynamics and both heads in place on windows of ``episodes``, in the log as ``series``."""
    if config.compile:
        model.dynamics.compile()
    sampler = latent_sampler(model, episodes, config)
    return fit_windows(
        series, model, sampler, config, instructions=instructions, seed=seed, folder=folder, log=log, steps=config.steps
    )


class Placed(Protocol):
    """A model with a device."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...


class Typed(Protocol):
    """Training settings with a number type: ``float32``, ``bfloat16``, or ``auto``."""

    dtype: str


class WindowTraining(Typed, Protocol):
    """Training settings of windows, see :class:`WorldModelTraining`."""

    batch: int
    bootstrap: float
    bootstrap_rows: int
    negative_share: float

    @property
    def unroll(self) -> int:
        """Chunks per window."""
        ...

    @property
    def action_dropout(self) -> float:
        """Share of windows that lose their actions."""
        ...


class WindowPart(Protocol):
    """Computes the loss of encoded windows."""

    def __call__(
        self, batch: WindowBatch, generator: torch.Generator, *, depth: int, hidden: Tensor | None, own: bool
    ) -> tuple[Tensor, Logs]:
        """Loss and scalars of a batch after ``depth`` imagined chunks; ``own``: the memory is the model's own."""
        ...


@dataclass(frozen=True)
class WindowLoss:
    """The loss of pass ``k``, a pure function of weights, seed, ``k`` and the latent rollouts, if any."""

    model: Any  # a world model that follows windows, and encodes them.
    sampler: WindowSampler
    config: WindowTraining
    instructions: TaskInstructions
    seed: int
    rollouts: LatentRollouts | None
    part: WindowPart  # computes it.
    # of the random stream of pass ``k``.
    names: Callable[[int], tuple[str | int, ...]] = lambda step: ("dynamics", step)
    split: bool = False  # whether rollouts advance with a generator of their own on devices other than the CPU.
    processes: OneProcess = field(default_factory=OneProcess)

    def __call__(self, step: int) -> tuple[Tensor, Logs]:
        """Draw windows and compute their loss; return it with its scalars."""
        config = self.config
        generator = self.processes.part.stream(self.seed, *self.names(step))
        if self.rollouts is not None:
            if float(torch.rand((), generator=generator)) < config.bootstrap:
                return self._continued(self.rollouts, generator)
            depth = 0
        else:
            depth = draw_depth(config.unroll, config.bootstrap, generator)
        batch = self.sampler.sample(config.batch, generator, chunk=depth)
        batch, hidden = self._relabelled(batch, generator)
        drawn = on_device(generator, self.model.device)
        with autocast(self.model, config):
            return self.part(self.model.encoded(batch), drawn, depth=depth, hidden=hidden, own=False)

    def _relabelled(self, batch: WindowBatch, generator: torch.Generator) -> tuple[WindowBatch, Tensor | None]:
        """Give windows other instructions, and hide the actions of some; they are then on the model's device."""
        hidden = hide_rows(batch, self.config.action_dropout, generator)
        batch = relabel(batch, self.instructions, self.config.negative_share, generator, hidden)
        part = self.processes.part
        if hidden is not None:
            hidden = hidden[part.rows(len(hidden))]
        return batch.part(part).to(self.model.device), hidden

    def _continued(self, rollouts: LatentRollouts, generator: torch.Generator) -> tuple[Tensor, Logs]:
        context = rollouts.draw(self.config.batch, generator)
        batch, hidden = self._relabelled(context.batch, generator)
        drawn = on_device(generator, self.model.device)
        with autocast(self.model, self.config):
            found = self.part(self.model.encoded(batch), drawn, depth=0, hidden=hidden, own=True)
            again = on_device(generator, self.model.device) if self.split else drawn
            rollouts.advance(self.model, replace(context, batch=batch), again, hidden)
        return found


def video_part(model: VideoWorldModel, denoise: Denoise | None) -> WindowPart:
    """Return the loss of a video world model; ``denoise`` replaces the backend's own."""

    def loss(
        batch: WindowBatch, generator: torch.Generator, *, depth: int, hidden: Tensor | None, own: bool
    ) -> tuple[Tensor, Logs]:
        if own:
            state, target = window_state(batch)
            return chunk_loss(model, state, batch, target, 0, generator, denoise, hidden)
        return dynamics_loss(model, batch, generator=generator, depth=depth, denoise=denoise, hidden=hidden)

    return loss


def fit_windows(
    series: str,
    model: VideoWorldModel,
    sampler: WindowSampler,
    config: WorldModelTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    steps: int,
    denoise: Denoise | None = None,
    further: Mapping[str, torch.nn.Module] | None = None,
) -> FitReport:
    """Train dynamics, success and gripper head in place on windows; ``denoise`` replaces the backend's own loss.

    ``further`` modules of that loss learn too; the average leaves them out, since nothing reads them afterwards.
    """
    if config.action_dropout and not model.config.dynamics.planning:
        raise SettingError(
            f"training.action_dropout={config.action_dropout} needs a model that plans: give dynamics.planning=true of the model"
        )
    kept = learning_modules(model, sampler.store)
    modules = kept | dict(further or {})
    ema = Ema(torch.nn.ModuleDict(kept), config.ema_decay) if config.ema_decay else None
    rollouts = latent_rollouts(model, sampler, config)
    divided = spread(config, unused=leaves_unused(model.config.dynamics, config), batch=config.batch)
    if rollouts is not None and divided.parts > 1:
        raise SettingError(
            f"training.bootstrap_rows={config.bootstrap_rows}: one process keeps the rollouts; "
            "give training.bootstrap_rows=0, or train in one process"
        )
    model.train()
    report = fit(
        series,
        modules={**modules, **({} if rollouts is None else {"rollouts": rollouts})},
        optimizer=adamw(torch.nn.ModuleDict(modules), config.learning_rate, config.weight_decay),
        loss=WindowLoss(
            model, sampler, config, instructions, seed, rollouts, video_part(model, denoise), processes=divided
        ),
        steps=steps,
        folder=folder,
        every_checkpoint=config.checkpoint_every,
        schedule=warmup_cosine(steps, min(config.warmup, steps - 1), final=0.02),
        clip_norm=config.clip_norm,
        log=log,
        every_log=10,
        ema=ema,
        processes=divided,
    )
    if ema is not None:
        for name, module in kept.items():
            module.load_state_dict(ema.module.get_submodule(name).state_dict())
    model.eval()
    return report


def leaves_unused(dynamics: DynamicsConfig, config: WindowTraining) -> bool:
    """Whether some weights get no gradient: those of a condition that is off, or of plans where all actions are seen."""
    off = not (dynamics.action_modulation and dynamics.action_tokens)
    return off or (dynamics.planning and not config.action_dropout)


def learning_modules(model: VideoWorldModel, store: FrameStore) -> dict[str, torch.nn.Module]:
    """Return what learns on windows, by name; the state head gets the scale of the recorded numbers."""
    modules = {"dynamics": model.dynamics, "success": model.success, "gripper": model.gripper}
    if model.state_head is not None:
        model.state_head.scale_to(*recorded_states(model, store))
        modules["state_head"] = model.state_head
    if model.pose_head is not None:
        model.pose_head.scale_to(*recorded_poses(model, store))
        modules["pose_head"] = model.pose_head
    return modules


def recorded_poses(model: VideoWorldModel, store: FrameStore) -> tuple[Tensor, Tensor]:
    """Return measured poses ``[R, 6]`` in the frames of recorded chunks, and what their actions alone make of them ``[R, 2A]``."""
    layout = WindowLayout(model.chunk_length, 1, model.frame_stride)
    begin = [np.arange(0, length, layout.chunk_length) for length in store.length.tolist()]
    episode = np.repeat(np.arange(len(begin)), [len(one) for one in begin])
    batch = gather_windows(store, layout, episode, np.concatenate(begin), np.zeros(len(episode), bool)).to(model.device)
    known = batch.valid.flatten()
    commands = model.frame_commands(batch.starts[:, 0], batch.commands).flatten(0, 1)
    return batch.recorded[..., : model.embodiment.measured_pose].flatten(0, 1)[known], commands[known]


def recorded_states(model: Any, store: FrameStore) -> tuple[Tensor, Tensor]:
    """Return all measured numbers ``[R, S]`` and what the state head knows of their commands ``[R, 2A]``."""
    row, begin = np.arange(len(store.command)), np.repeat(store.first, store.length + 1)
    before = store.command[np.maximum(row - model.frame_stride, begin)]
    now, before, state = (torch.from_numpy(part).to(model.device) for part in (store.command, before, store.state))
    held = now[:, None].expand(-1, model.frame_stride, -1)
    return state, model.frame_commands(before, held)[:, 0]


def latent_rollouts(model: Placed, sampler: WindowSampler, config: WindowTraining) -> LatentRollouts | None:
    """Make the buffer of bootstrapped steps, if the settings have one."""
    if not config.bootstrap_rows:
        return None
    return LatentRollouts(sampler.store, sampler.layout, config.bootstrap_rows).to(model.device)


def latent_sampler(model: VideoWorldModel, episodes: Sequence[Episode], config: WorldModelTraining) -> WindowSampler:
    """Make a sampler whose frames are latents ``[c, h, w]``, encoded once."""
    dynamics = model.config.dynamics
    return WindowSampler(
        episodes,
        chunk_length=dynamics.chunk_length,
        memory_frames=dynamics.memory_frames,
        frame_stride=dynamics.frame_stride,
        unroll=config.unroll,
        first_chunk_share=config.first_chunk_share,
        static_share=config.static_share,
        event_share=config.event_share,
        images=model.config.cameras,
        robot=model.embodiment,
        keep=lambda views, rows: encode_frames(model, views, rows, config),
    )


@torch.no_grad()
def encode_frames(
    model: VideoWorldModel, views: Iterable[NDArray[np.uint8]], rows: int, config: Typed, *, batch: int = 256
) -> Tensor:
    """Encode ``rows`` frames, in parts uint8 ``[·, Y, X, 3]``, to half-precision latents ``[R, c, h, w]`` on the device."""
    # Half precision: rounding is a hundred times below the codec's own error.
    latent = torch.empty((rows, *model.codec.latent_shape), dtype=torch.float16, device=model.device)
    for first, block in zip(range(0, rows, batch), in_blocks(views, batch), strict=True):
        part = to_unit(torch.from_numpy(block).to(model.device))
        with autocast(model, config):
            latent[first : first + batch] = model.codec.encode(part[:, None])[:, 0].half()
    return latent


def autocast(model: Placed, config: Typed) -> torch.autocast:
    """Compute in the training's number type; weights stay float32."""
    return device_autocast(model.device, resolve_dtype(config.dtype, model.device))
