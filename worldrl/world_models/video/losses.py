"""Losses of the video world model over windows of real episodes.

The dynamics loss is of one chunk of a window, at a drawn ``depth``. If that is not the first chunk, the model imagines
the chunks before it and continues from its own frames, as in closed-loop imagination. The target stays the true future.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.rng import draw, on_device, part_of
from worldrl.data.windows.windows import WindowBatch
from worldrl.diffusion.flow import add_noise
from worldrl.world_models.video.dynamics import ChunkLoss, Dynamics
from worldrl.world_models.video.following import VideoState, follow_window, latent_start
from worldrl.world_models.video.heads import opening_loss, success_loss
from worldrl.world_models.video.model import VideoWorldModel

Denoise = Callable[..., ChunkLoss]
"""A backend's ``loss`` or its replacement, see :meth:`worldrl.world_models.video.dynamics.Dynamics.loss`."""


def noisy_memory(memory: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Mix noise into memory latents, each row at its own level in [0, ``strength``]; the model does not get the level."""
    level = strength * draw(torch.rand, memory.shape[:1], generator, device=memory.device)
    noise = draw(torch.randn, memory.shape, generator, device=memory.device)
    return add_noise(memory, noise, level)


def draw_depth(unroll: int, bootstrap: float, generator: torch.Generator) -> int:
    """Draw the number of imagined chunks: 0, or with probability ``bootstrap`` uniform in 1..``unroll``-1."""
    if unroll < 2 or float(torch.rand((), generator=generator)) >= bootstrap:
        return 0
    return int(torch.randint(1, unroll, (), generator=generator))


def dynamics_loss(
    model: VideoWorldModel,
    batch: WindowBatch,
    *,
    generator: torch.Generator,
    depth: int = 0,
    denoise: Denoise | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Logs]:
    """The backend's loss plus those of success and gripper head for one chunk of each window of latents, and logs.

    The model first imagines ``depth`` chunks, 0 to ``U`` - 1. ``denoise`` replaces the backend's own loss; rows of
    ``hidden``, bool ``[B]``, use the instruction instead of actions.
    """
    generator = on_device(generator, model.device)
    with torch.no_grad():
        state, target = window_state(batch)
        state = imagine_ahead(model, state, batch, depth, generator, hidden)
        state = _with_noise(state, model.config.dynamics.memory_noise if depth == 0 else 0.0, generator)
    return chunk_loss(model, state, batch, target, depth, generator, denoise, hidden)


def _with_noise(state: VideoState, strength: float, generator: torch.Generator) -> VideoState:
    return replace(state, memory=noisy_memory(state.memory, strength, generator)) if strength else state


def window_state(batch: WindowBatch) -> tuple[VideoState, Tensor]:
    """Split a window of latents into its start (no instruction, belief and image) and all future latents ``[B, U·F, ...]``."""
    return latent_start(batch), batch.frames.float()


def imagine_ahead(
    model: VideoWorldModel,
    state: VideoState,
    batch: WindowBatch,
    depth: int,
    generator: torch.Generator,
    hidden: Tensor | None = None,
) -> VideoState:
    """Imagine the first ``depth`` chunks of the window; see :func:`follow_window`."""
    states = [state, *(after for after, _ in follow_window(model, state, batch, depth, generator, hidden))]
    return states[-1]


def chunk_loss(
    model: Any,
    state: VideoState,
    batch: WindowBatch,
    target: Tensor,
    chunk: int,
    generator: torch.Generator,
    denoise: Denoise | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Logs]:
    """Loss of one chunk of the window, of either world model, after ``state``; see :func:`dynamics_loss`."""
    config = model.config
    frames = slice(chunk * config.dynamics.chunk_frames, (chunk + 1) * config.dynamics.chunk_frames)
    steps = slice(chunk * config.dynamics.chunk_length, (chunk + 1) * config.dynamics.chunk_length)
    clean, valid = target[:, frames], batch.valid[:, frames]
    condition = model.window_condition(batch, steps, hidden)
    instruction = model.success.embed(batch.instruction)
    dynamics: Dynamics = model.dynamics
    base = (denoise or dynamics.loss)(clean, valid, state.reference, state.memory, condition, generator=generator)
    logit = model.success(base.features, instruction)
    weights = config.success.positive_weight, config.success.noise_weight
    part, count = part_of(generator), batch.mean_count(frames)
    head = success_loss(logit.float(), *batch.masks(frames), base.level, *weights, part=part)
    total = base.loss + config.success.loss_weight * head
    logs = {**base.logs, "wm/success_loss": head.detach()}
    for name, read in _measured_losses(model, base.features, batch, chunk, frames, steps, count).items():
        total = total + config.state_head.loss_weight * read
        logs[name] = read.detach()
    if model.gripper is None:
        return total, logs
    unit = model.embodiment.actions.opening_unit
    grip = opening_loss(model.gripper(base.features).float(), batch.opening[:, frames], valid, unit, count)
    return total + config.gripper.loss_weight * grip, {**logs, "wm/gripper_loss": grip.detach()}


def _measured_losses(
    model: Any, features: Tensor, batch: WindowBatch, chunk: int, frames: slice, steps: slice, count: Tensor
) -> Logs:
    """Negative log-likelihood of what is measured in a chunk's frames, for each head that predicts it."""
    found = {"wm/state_nll": (model.state_head, batch.state), "wm/pose_nll": (model.pose_head, batch.recorded)}
    commands, before = batch.commands[:, steps], batch.starts[:, chunk]
    return {
        name: head.loss(
            features,
            model.frame_commands(before, commands),
            measured[:, frames, : len(head.offset)],
            batch.valid[:, frames],
            count,
        )
        for name, (head, measured) in found.items()
        if head is not None
    }
