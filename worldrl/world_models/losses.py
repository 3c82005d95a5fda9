"""Losses of the video world model over windows of real episodes.

The dynamics loss looks at one chunk of a window, at a drawn ``depth``. Where that is not the first chunk, the model
imagines the chunks before it and is then asked to go on from its own frames, which is what closed-loop imagination
will ask of it. The target stays the true future.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.rng import on_device
from worldrl.data.windows import WindowBatch
from worldrl.diffusion.flow import add_noise, draw_sigma
from worldrl.world_models.gripper_head import opening_loss
from worldrl.world_models.success_head import success_loss
from worldrl.world_models.video import VideoState, VideoWorldModel


def motion_weight(target: Tensor, now: Tensor, strength: float) -> Tensor:
    """Weight tokens by how much they change within the chunk.

    Args:
        target: future latents ``[B, F, c, h, w]``.
        now: newest memory latent ``[B, 1, c, h, w]``.
        strength: weight of a token that changed by its own scale, on top of 1.

    Returns:
        ``[B, F, 1, h, w]``, mean 1 over the batch.
    """
    change = (target - now).square().mean(dim=2, keepdim=True).clamp(max=1)
    weight = 1 + strength * change
    return weight / weight.mean()


def noisy_memory(memory: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Mix noise into memory latents, each row at its own level in [0, ``strength``]; the level is not told."""
    level = strength * torch.rand(memory.shape[0], generator=generator, device=memory.device)
    noise = torch.randn(memory.shape, generator=generator, device=memory.device)
    return add_noise(memory, noise, level)


def draw_depth(unroll: int, bootstrap: float, generator: torch.Generator) -> int:
    """Draw how many chunks the model imagines before the one in question.

    0, or with probability ``bootstrap`` one of 1..``unroll``-1, all alike.
    """
    if unroll < 2 or float(torch.rand((), generator=generator)) >= bootstrap:
        return 0
    return int(torch.randint(1, unroll, (), generator=generator))


def dynamics_loss(
    model: VideoWorldModel,
    batch: WindowBatch,
    *,
    generator: torch.Generator,
    depth: int = 0,
    head_only: bool = False,
) -> tuple[Tensor, Logs]:
    """Flow loss on clean latents plus the losses of both heads, for one chunk of each window.

    Args:
        model: the world model; its codec is not trained here.
        batch: windows of ``U`` chunks, cut out of latents (see :func:`worldrl.world_models.training.latent_sampler`).
        generator: CPU generator of this step.
        depth: chunks that the model imagines before the one in question, from 0 to ``U`` - 1.
        head_only: train the success head on the features as they are.

    Returns:
        Scalar loss and logs.
    """
    generator = on_device(generator, model.device)
    with torch.no_grad():
        state, target = window_state(batch)
        state = imagine_ahead(model, state, batch, depth, generator)
        state = _with_noise(state, model.config.dynamics.memory_noise if depth == 0 else 0.0, generator)
    return chunk_loss(model, state, batch, target, depth, generator, head_only=head_only)


def _with_noise(state: VideoState, strength: float, generator: torch.Generator) -> VideoState:
    if strength == 0:
        return state
    return VideoState(
        state.reference, noisy_memory(state.memory, strength, generator), state.command, state.instruction
    )


def window_state(batch: WindowBatch) -> tuple[VideoState, Tensor]:
    """Split a window of latents into its starting state (instruction left empty) and all future latents ``[B, U·F, ...]``."""
    reference, memory, future = (x.float() for x in (batch.reference, batch.memory, batch.frames))
    return VideoState(reference, memory, batch.command, reference.new_zeros(len(reference), 0)), future


def imagine_ahead(
    model: VideoWorldModel, state: VideoState, batch: WindowBatch, depth: int, generator: torch.Generator
) -> VideoState:
    """Let the model imagine the first ``depth`` chunks of the window from their true actions."""
    length = model.chunk_length
    for chunk in range(depth):
        span = slice(chunk * length, (chunk + 1) * length)
        condition = model.condition(batch.action[:, span], batch.commands[:, span])
        shape = (state.rows, model.config.dynamics.chunk_frames, *model.codec.latent_shape)
        noise = torch.randn(shape, generator=generator, device=model.device)
        latent, _ = model.sample_latents(state, condition, noise)
        memory = torch.cat([state.memory, latent], dim=1)[:, -model.memory_frames :]
        state = VideoState(state.reference, memory, batch.commands[:, span][:, -1], state.instruction)
    return state


def chunk_loss(
    model: VideoWorldModel,
    state: VideoState,
    batch: WindowBatch,
    target: Tensor,
    chunk: int,
    generator: torch.Generator,
    *,
    head_only: bool = False,
) -> tuple[Tensor, Logs]:
    """Loss of one chunk of the window, from ``state`` just before it; of the success head alone if asked."""
    config = model.config
    frames = slice(chunk * config.dynamics.chunk_frames, (chunk + 1) * config.dynamics.chunk_frames)
    steps = slice(chunk * config.dynamics.chunk_length, (chunk + 1) * config.dynamics.chunk_length)
    clean, valid, success = target[:, frames], batch.valid[:, frames], batch.success[:, frames]
    sigma = draw_sigma(
        state.rows,
        pure_noise_share=config.dynamics.pure_noise_share,
        shift=config.dynamics.shift,
        generator=generator,
    )
    noise = torch.randn(clean.shape, generator=generator, device=model.device)
    condition = model.condition(batch.action[:, steps], batch.commands[:, steps])
    with torch.set_grad_enabled(torch.is_grad_enabled() and not head_only):
        predicted, features = model.dynamics(
            add_noise(clean, noise, sigma), sigma, state.reference, state.memory, condition
        )
    weight = motion_weight(clean, state.memory[:, -1:], config.dynamics.motion_weight) * valid[:, :, None, None, None]
    flow = (weight * (predicted.float() - clean).square()).mean()
    logit = model.success(features, model.success.embed(batch.instruction))
    head = success_loss(logit.float(), success, valid, sigma, config.success.positive_weight)
    logs = {"wm/flow_loss": flow.detach(), "wm/success_loss": head.detach()}
    if head_only:
        return head, logs
    grip = opening_loss(model.gripper(features).float(), batch.opening[:, frames], valid)
    total = flow + config.success.loss_weight * head + config.gripper.loss_weight * grip
    return total, {**logs, "wm/gripper_loss": grip.detach()}
