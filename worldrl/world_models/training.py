"""Training of the video world model: the codec on frames, then the dynamics with two heads on its latents.

The sampler may then be distilled to fewer steps (``distillation``). The outcome head comes last, on whole episodes
(``outcome_training``).

The codec is frozen while the dynamics learn, so every frame is encoded once and windows are cut out of latents:
on two cores that saves a third of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldrl.core.device import autocast as device_autocast
from worldrl.core.device import resolve_dtype
from worldrl.core.ema import Ema
from worldrl.core.errors import SettingError
from worldrl.core.fit import FitReport, adamw, fit, warmup_cosine
from worldrl.core.log import MetricLog
from worldrl.core.rng import on_device, stream
from worldrl.core.types import Episode
from worldrl.data.windows import WindowSampler
from worldrl.world_models.bootstrapping import LatentRollouts
from worldrl.world_models.codec import IdentityCodec, to_unit
from worldrl.world_models.losses import Denoise, chunk_loss, draw_depth, dynamics_loss
from worldrl.world_models.sentences import Sentences, hide_rows, relabel
from worldrl.world_models.video import VideoWorldModel


@dataclass
class WorldModelTraining:
    """Settings of :func:`fit_codec`, :func:`fit_dynamics` and ``outcome_training.fit_outcome``.

    Attributes:
        codec_steps: steps of the codec; 0 keeps the codec as it is, and pixels need none.
        codec_batch: frames per codec step.
        codec_learning_rate: peak, warm-up cosine.
        steps: steps of dynamics, success and gripper head together; 0 leaves them as they are.
        batch: windows per step.
        learning_rate: peak, warm-up cosine.
        warmup: steps of warm-up.
        weight_decay: AdamW.
        clip_norm: largest gradient norm.
        ema_decay: of the averaged weights that are kept; 0 keeps the last ones.
        unroll: chunks per window.
        bootstrap: probability that a step continues from the model's own imagined frames.
        bootstrap_rows: size of the buffer of latent rollouts that such steps continue, to any depth
            (``bootstrapping``); 0 imagines ahead within the window instead.
        first_chunk_share: share of windows that start an episode.
        static_share: share of static clips.
        event_share: share of windows around gripper changes and contacts.
        negative_share: share of windows whose instruction is swapped for one they certainly do not fulfil.
        action_dropout: share of windows that are told the instruction instead of their actions, for a model that plans
            (``dynamics.planning``); static clips keep theirs. Give such a model episodes that do what they were told.
        outcome_steps: steps of the outcome head, after the dynamics; 0 leaves it as it is.
        outcome_batch: episodes per step of those.
        outcome_learning_rate: peak, warm-up cosine.
        outcome_weight_decay: AdamW.
        outcome_dropout: share of the findings hidden in each episode.
        distill_steps: steps of distillation, between dynamics and outcome head; 0 leaves the sampler as it is.
        distill_teacher_steps: of the sampler that is distilled.
        distill_sampling_steps: of the distilled sampler.
        dtype: ``float32``, ``bfloat16`` for autocast, or ``auto``: bfloat16 where the device has units for it.
        compile: compile the dynamics (worth it on a GPU).
        checkpoint_every: steps between checkpoints.
    """

    codec_steps: int = 0
    codec_batch: int = 48
    codec_learning_rate: float = 6e-4
    steps: int = 600
    batch: int = 32
    learning_rate: float = 2e-4
    warmup: int = 50
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ema_decay: float = 0.995
    unroll: int = 3
    bootstrap: float = 0.5
    bootstrap_rows: int = 0
    first_chunk_share: float = 0.1
    static_share: float = 0.05
    event_share: float = 0.4
    negative_share: float = 0.2
    action_dropout: float = 0.0
    outcome_steps: int = 400
    outcome_batch: int = 64
    outcome_learning_rate: float = 2e-3
    outcome_weight_decay: float = 0.05
    outcome_dropout: float = 0.1
    distill_steps: int = 0
    distill_teacher_steps: int = 8
    distill_sampling_steps: int = 1
    dtype: str = "auto"
    compile: bool = False
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        """Check the ranges that the rooms below do not check."""
        for name in ("bootstrap", "negative_share", "action_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"world_model.{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("distill_teacher_steps", "distill_sampling_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"world_model.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.outcome_dropout < 1:
            raise SettingError(f"world_model.outcome_dropout must lie in [0, 1), got {self.outcome_dropout}")
        if self.bootstrap_rows < 0:
            raise SettingError(f"world_model.bootstrap_rows must not be negative, got {self.bootstrap_rows}")
        if self.bootstrap > 0 and self.unroll < 2 and not self.bootstrap_rows:
            raise SettingError(
                f"world_model.bootstrap needs world_model.unroll of at least 2 or bootstrap_rows, got {self.unroll} and 0"
            )


def fit_codec(
    model: VideoWorldModel,
    frames: Tensor,
    config: WorldModelTraining,
    *,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
) -> FitReport:
    """Train the codec in place on uint8 frames ``[R, Y, X, 3]`` held in memory; SettingError when it is the identity."""
    codec = model.codec
    if isinstance(codec, IdentityCodec):
        raise SettingError("codec.kind=identity has nothing to learn; give codec_steps=0, or codec.kind=patch")
    optimizer = adamw(codec, config.codec_learning_rate, config.weight_decay)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = stream(seed, "codec", step)
        rows = torch.randint(len(frames), (config.codec_batch,), generator=generator)
        with autocast(model, config):
            return codec.loss(frames[rows.to(frames.device)].to(model.device), generator=generator)

    return fit(
        "codec",
        modules={"codec": codec},
        optimizer=optimizer,
        loss=loss,
        steps=config.codec_steps,
        folder=folder,
        every_checkpoint=config.checkpoint_every,
        schedule=warmup_cosine(config.codec_steps, min(config.warmup, config.codec_steps - 1), final=0.02),
        clip_norm=config.clip_norm,
        log=log,
        every_log=10,
    )


def fit_dynamics(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    sentences: Sentences,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "dynamics",
) -> FitReport:
    """Train dynamics and both heads in place on windows of ``episodes``; the codec stays as it is.

    ``series`` names the training in the log, so that several rounds keep a curve each.
    """
    if config.compile:
        model.dynamics.compile()
    sampler = latent_sampler(model, episodes, config)
    return fit_windows(
        series, model, sampler, config, sentences=sentences, seed=seed, folder=folder, log=log, steps=config.steps
    )


@dataclass(frozen=True)
class _WindowLoss:
    """The loss of step ``k``, a pure function of weights, seed and ``k``, and of the latent rollouts where there are any."""

    model: VideoWorldModel
    sampler: WindowSampler
    config: WorldModelTraining
    sentences: Sentences
    seed: int
    rollouts: LatentRollouts | None
    denoise: Denoise | None

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = stream(self.seed, "dynamics", step)
        if self.rollouts is not None:
            if float(torch.rand((), generator=generator)) < config.bootstrap:
                return self._continued(self.rollouts, generator)
            depth = 0
        else:
            depth = draw_depth(config.unroll, config.bootstrap, generator)
        batch = self.sampler.sample(config.batch, generator, chunk=depth)
        hidden = hide_rows(batch, config.action_dropout, generator)
        batch = relabel(batch, self.sentences, config.negative_share, generator, hidden).to(self.model.device)
        with autocast(self.model, config):
            return dynamics_loss(
                self.model, batch, generator=generator, depth=depth, denoise=self.denoise, hidden=hidden
            )

    def _continued(self, rollouts: LatentRollouts, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn from rows of the buffer, then let them go on."""
        context = rollouts.draw(self.config.batch, generator)
        hidden = hide_rows(context.batch, self.config.action_dropout, generator)
        batch = relabel(context.batch, self.sentences, self.config.negative_share, generator, hidden)
        drawn = on_device(generator, self.model.device)
        with autocast(self.model, self.config):
            found = chunk_loss(self.model, context.state, batch, context.target, 0, drawn, self.denoise, hidden)
            rollouts.advance(self.model, context, drawn)
        return found


def fit_windows(
    series: str,
    model: VideoWorldModel,
    sampler: WindowSampler,
    config: WorldModelTraining,
    *,
    sentences: Sentences,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    steps: int,
    denoise: Denoise | None = None,
) -> FitReport:
    """Train dynamics, success and gripper head in place on windows; ``denoise`` replaces the backend's own loss."""
    if config.action_dropout and not model.config.dynamics.planning:
        raise SettingError(
            f"world_model.action_dropout={config.action_dropout} needs a model that plans: give dynamics.planning=true"
        )
    modules = {"dynamics": model.dynamics, "success": model.success, "gripper": model.gripper}
    together = torch.nn.ModuleDict(modules)
    ema = Ema(together, config.ema_decay) if config.ema_decay else None
    rollouts = latent_rollouts(model, sampler, config)
    model.train()
    report = fit(
        series,
        modules={**modules, **({} if rollouts is None else {"rollouts": rollouts})},
        optimizer=adamw(together, config.learning_rate, config.weight_decay),
        loss=_WindowLoss(model, sampler, config, sentences, seed, rollouts, denoise),
        steps=steps,
        folder=folder,
        every_checkpoint=config.checkpoint_every,
        schedule=warmup_cosine(steps, min(config.warmup, steps - 1), final=0.02),
        clip_norm=config.clip_norm,
        log=log,
        every_log=10,
        ema=ema,
    )
    if ema is not None:
        for name, module in modules.items():
            module.load_state_dict(ema.module.get_submodule(name).state_dict())
    model.eval()
    return report


def latent_rollouts(
    model: VideoWorldModel, sampler: WindowSampler, config: WorldModelTraining
) -> LatentRollouts | None:
    """Make the buffer that bootstrapped steps continue, where there is one."""
    if not config.bootstrap_rows:
        return None
    rollouts = LatentRollouts(sampler.store, sampler.layout, config.bootstrap_rows, model.codec.latent_shape)
    return rollouts.to(model.device)


def latent_sampler(model: VideoWorldModel, episodes: Sequence[Episode], config: WorldModelTraining) -> WindowSampler:
    """Make a sampler whose frames are latents ``[c, h, w]``, encoded once."""
    dynamics = model.config.dynamics
    sampler = WindowSampler(
        episodes,
        chunk_length=dynamics.chunk_length,
        memory_frames=dynamics.memory_frames,
        frame_stride=dynamics.frame_stride,
        unroll=config.unroll,
        first_chunk_share=config.first_chunk_share,
        static_share=config.static_share,
        event_share=config.event_share,
    )
    frames = np.asarray(sampler.store.frames)
    sampler.store = replace(sampler.store, frames=encode_frames(model, frames, config))
    return sampler


@torch.no_grad()
def encode_frames(
    model: VideoWorldModel, frames: np.ndarray, config: WorldModelTraining, *, batch: int = 256
) -> Tensor:
    """Encode uint8 frames ``[R, Y, X, 3]`` to latents ``[R, c, h, w]`` on the model's device.

    Kept in half precision: rounding is a hundred times below the codec's own error.
    """
    latent = torch.empty((len(frames), *model.codec.latent_shape), dtype=torch.float16, device=model.device)
    for first in range(0, len(frames), batch):
        part = to_unit(torch.from_numpy(frames[first : first + batch]).to(model.device))
        with autocast(model, config):
            latent[first : first + batch] = model.codec.encode(part[:, None])[:, 0].half()
    return latent


def autocast(model: VideoWorldModel, config: WorldModelTraining) -> torch.autocast:
    """Compute in the training's number type; weights stay float32."""
    return device_autocast(model.device, resolve_dtype(config.dtype, model.device))
