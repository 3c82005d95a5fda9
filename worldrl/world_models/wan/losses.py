"""Loss of the Wan world model on clips of real episodes: flow matching on the future, and the joint success head.

x_σ = (1-σ)·z + σ·ε on future latents, target ε − z (Wan's sign). The reference stays clean. The memory gets a small fixed
noise of which the model is not told, since in imagination it will be the model's own; where it is that already, none.

Shapes legend: ``B`` clips, ``f`` latent frames, ``m`` of them memory, ``p`` future, ``F = 4 p`` future frames, ``N`` actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from worldrl.core.interfaces import Logs
from worldrl.diffusion.flow import add_noise, draw_sigma, shift_sigma
from worldrl.world_models.video.success_head import success_loss
from worldrl.world_models.wan.config import GROUP, WanConfig
from worldrl.world_models.wan.dynamics import TIMESTEPS
from worldrl.world_models.wan.model import WanWorldModel


@dataclass(frozen=True)
class WanClip:
    """A batch of clips with everything that is drawn for them.

    Attributes:
        latent: clean, ``[B, f, c, h, w]``.
        action: ``[B, N, A]``.
        sigma: noise level of the future ``[B]``.
        noise: of the future ``[B, p, c, h, w]``.
        memory_noise: ``[B, m, c, h, w]``.
        success: bool ``[B, F]``.
        valid: bool ``[B, F]``, the frame was recorded.
        instruction: ``B`` sentences.
        own: the memory is the model's own, as imagination finds it; no noise joins it.
    """

    latent: Tensor
    action: Tensor
    sigma: Tensor
    noise: Tensor
    memory_noise: Tensor
    success: Tensor
    valid: Tensor
    instruction: list[str]
    own: bool = False


def bell_weight(sigma: Tensor, shift: float) -> Tensor:
    """WoVR's weight over noise levels: a bell around ½ that is 0 at 1 and has mean 1 over the shifted schedule.

    Args:
        sigma: shifted levels ``[B]``.
        shift: of the schedule.
    """

    def bell(level: Tensor) -> Tensor:
        return torch.exp(-2 * (level - 0.5).square()) - math.exp(-0.5)

    levels = torch.arange(1, TIMESTEPS + 1, dtype=torch.float64) / TIMESTEPS
    return bell(sigma) / float(bell(shift_sigma(levels, shift)).mean())


def draw_clip(
    latent: Tensor,
    action: Tensor,
    config: WanConfig,
    *,
    success: Tensor,
    valid: Tensor,
    instruction: list[str],
    generator: torch.Generator,
    own: bool = False,
) -> WanClip:
    """Draw noise and its level for clips; ``generator`` lives on the latents' device."""
    dynamics, device = config.dynamics, latent.device
    sigma = draw_sigma(
        len(latent), pure_noise_share=dynamics.pure_noise_share, shift=dynamics.shift, generator=generator
    )
    noise = torch.randn(latent[:, 1:].shape, generator=generator, device=device)
    memory = dynamics.context_latents - 1
    return WanClip(latent, action, sigma, noise[:, memory:], noise[:, :memory], success, valid, instruction, own)


def flow_loss(velocity: Tensor, clip: WanClip, future: Tensor, weight: Tensor) -> Tensor:
    """Weighted squared error of the velocity, over the latent frames all of whose frames were recorded.

    Args:
        velocity: of the future ``[B, p, c, h, w]``.
        clip: its noise is that of the input.
        future: clean latents ``[B, p, c, h, w]``.
        weight: of each clip ``[B]``.

    Returns:
        A scalar.
    """
    error = (velocity.float() - (clip.noise - future)).square().mean(dim=(2, 3, 4))  # [B, p]
    whole = clip.valid.unflatten(1, (-1, GROUP)).all(dim=-1)
    return (weight[:, None] * whole * error).sum() / whole.sum().clamp_min(1)


class WanLoss(nn.Module):
    """The trained parts of a world model, with their loss as the forward pass: what Accelerate wraps.

    Args:
        model: shares its dynamics and success head, under the same names.
    """

    def __init__(self, model: WanWorldModel):
        super().__init__()
        self.config = model.config
        self.dynamics, self.success = model.dynamics, model.success
        self._no_split_modules = list(model.dynamics._no_split_modules)

    def forward(self, clip: WanClip) -> tuple[Tensor, Logs]:
        """Return the scalar loss and detached scalars to log."""
        config = self.config.dynamics
        given, future = clip.latent.split([config.context_latents, config.future_latents], dim=1)
        level = torch.full_like(clip.sigma, 0.0 if clip.own else config.memory_noise)
        memory = add_noise(given[:, 1:], clip.memory_noise, level)
        x = torch.cat([given[:, :1], memory, add_noise(future, clip.noise, clip.sigma)], dim=1)
        velocity, features = self.dynamics(x, clip.sigma, clip.action)
        weight = bell_weight(clip.sigma, config.shift) if config.bell_weight else torch.ones_like(clip.sigma)
        flow = flow_loss(velocity[:, config.context_latents :], clip, future, weight)
        logit = self.success(features, self.success.embed(clip.instruction)).float()
        weights = self.config.success.positive_weight, self.config.success.noise_weight
        head = success_loss(logit, clip.success, clip.valid, clip.sigma[:, None], *weights)
        total = flow + self.config.success.loss_weight * head
        return total, {"wm/flow_loss": flow.detach(), "wm/success_loss": head.detach()}
