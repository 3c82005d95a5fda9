"""EDM U-Net: a chunk's frames one after the other, each from the newest frames and the actions that lead to it.

The backend of DIAMOND (Alonso et al. 2024): a small residual U-Net with past frames and the noisy one in its channels;
noise level and actions enter through adaptive group norms. A finished frame is rounded to 8 bits and becomes the newest
memory frame. Three differences: the episode's first frame is one more image in the channels; actions are continuous
vectors, each with its commanded pose; sampling starts at variance σ_max², as in EDM's Algorithm 1 (DIAMOND's code: 1).

All views of a frame are denoised together. Each is an image of its own to the convolutions, which would mix views across
the seam of a sheet; its view embedding is part of the condition, and attention at the bottom joins the views.

Shapes legend: ``B`` rows, ``V`` views, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions, ``s = L/F`` actions per frame,
``c h w`` latent sheet (pixels, as a rule), ``n`` tokens of a frame at the bottom of the U-Net, ``d`` channels.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.rng import own_rows, whole_rows
from worldrl.diffusion import edm
from worldrl.diffusion.flow import euler_step, expand_sigma
from worldrl.nn.blocks import Mlp
from worldrl.nn.convolution import UNet, convolution, groups
from worldrl.nn.embed import sinusoidal
from worldrl.world_models.video.codec import as_rows, as_sheets, quantise
from worldrl.world_models.video.config import DynamicsConfig
from worldrl.world_models.video.dynamics import ChunkLoss, motion_weight

CACHE = 2**22
"""Bytes of one layer's activations up to which rows are sampled together on a CPU, about what its cache holds.

At 64 pixels these are four rows: 32 rows in parts of four take half the time of all at once (float32, one core, 1 MB of L2).
"""


class EdmUNet(nn.Module):
    """Denoises the next frame ``(c, h, w)``; with ``pixels``, finished frames are rounded to the 256 levels of an image."""

    def __init__(
        self,
        config: DynamicsConfig,
        latent_shape: tuple[int, int, int],
        actions: ActionSpec = TOOL_ACTIONS,
        views: int = 1,
        *,
        pixels: bool,
    ):
        super().__init__()
        self.config = config
        self.pixels, self.views = pixels, views
        unet = config.unet
        self.width, self.heads = unet.channels, unet.heads
        channels = latent_shape[0]
        self.action_in = nn.Linear(config.frame_stride * 2 * actions.size, unet.condition)
        self.condition = Mlp(unet.condition, unet.condition)
        self.conv_in = convolution(channels * (config.memory_frames + 2), unet.channels)
        self.unet = UNet(unet.channels, unet.levels, unet.blocks, unet.condition, unet.heads, views)
        self.norm_out = nn.GroupNorm(groups(unet.channels), unet.channels)
        self.conv_out = convolution(unet.channels, channels)
        self.norm_features = nn.LayerNorm(unet.channels)
        # As large as the features: a head's query must distinguish its own frame's tokens.
        self.frame = nn.Parameter(torch.randn(config.chunk_frames, unet.channels))
        nn.init.zeros_(self.conv_out.weight)
        self.view = nn.Parameter(0.02 * torch.randn(views, unet.condition)) if views > 1 else None

    def forward(self, x: Tensor, sigma: Tensor, past: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Clean frame D(x; σ) and features ``[B, n, d]``; ``past [B, (1 + K) c, h, w]``, ``action [B, s, 2A]``."""
        unet = self.config.unet
        scale = edm.precondition(edm.fold_offset(sigma, unet.offset_noise), unet.sigma_data)
        inputs = torch.cat([past / unet.sigma_data, expand_sigma(scale.c_in, x) * x], dim=1)
        level = sinusoidal(1000 * scale.c_noise, unet.condition)
        given = level + self.action_in(action.flatten(1))
        if self.view is not None:
            given = (given[:, None] + self.view).flatten(0, 1)  # [B V, D]
        condition = self.condition(given)
        # Convolutions are half again as fast on a CPU with channels innermost.
        hidden = self.conv_in(as_rows(inputs, self.views).contiguous(memory_format=torch.channels_last))
        hidden, bottom = self.unet(hidden, condition)
        output = as_sheets(self.conv_out(F.silu(self.norm_out(hidden))), self.views)
        bottom = as_sheets(bottom, self.views)
        return edm.denoised(x, output.float(), scale), self.norm_features(bottom.flatten(2).transpose(1, 2))

    @property
    def noise_frames(self) -> int:
        """One per frame: the sampler adds no further noise."""
        return self.config.chunk_frames

    def sample(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sample frame after frame, each from those before, a few rows at a time; see :meth:`Dynamics.sample`."""
        rows = self._rows_together(noise)
        parts = zip(*(given.split(rows) for given in (noise, reference, memory, action)), strict=True)
        frames, features = zip(*(self._sample_rows(*part) for part in parts), strict=True)
        return torch.cat(frames), torch.cat(features)

    def _rows_together(self, noise: Tensor) -> int:
        if noise.device.type != "cpu":
            return max(1, len(noise))
        height, width = noise.shape[-2:]
        return max(1, CACHE // (4 * self.width * height * width))

    def _sample_rows(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        frames: list[Tensor] = []
        features: list[Tensor] = []
        for start, steps in zip(noise.unbind(1), self._steps(action), strict=True):
            frame, found = self._sample_frame(start, self._past(reference, memory), steps)
            memory = self._remember(memory, frame)
            frames.append(memory[:, -1])
            features.append(found)
        return torch.stack(frames, dim=1), self._features(features)

    def _sample_frame(self, noise: Tensor, past: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate dx/dσ from noise to a frame (EDM's Algorithm 1, no churn), with the last evaluation's features."""
        unet = self.config.unet
        grid = edm.karras_grid(unet.sampling_steps, unet.sigma_low, unet.sigma_start, unet.rho).to(noise.device)
        x, features = grid[0] * noise, noise.new_zeros(0)
        for step, (sigma, sigma_next) in enumerate(pairwise(grid[:, None].expand(-1, len(noise))), start=1):
            clean, features = self(x, sigma, past, action)
            ahead = euler_step(x, clean, sigma, sigma_next)
            if unet.order == 2 and step < unet.sampling_steps:
                clean_ahead, features = self(ahead, sigma_next, past, action)
                ahead = edm.heun_step(x, clean, ahead, clean_ahead, sigma, sigma_next)
            x = ahead
        return x, features

    def loss(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChunkLoss:
        """Denoise frame after frame, each from the model's own detached estimates of those before (DIAMOND)."""
        unet, now = self.config.unet, memory[:, -1:]
        found, errors, levels = list[Tensor](), list[Tensor](), list[Tensor]()
        for frame, steps in zip(clean.unbind(1), self._steps(action), strict=True):
            sigmas = self._draw_sigma(whole_rows(len(frame), generator), generator)
            sigma = own_rows(sigmas, generator)
            noisy = frame + edm.draw_noise(frame.shape, sigma, unet.offset_noise, generator)
            estimate, features = self(noisy, sigma, self._past(reference, memory), steps)
            level = edm.fold_offset(sigma, unet.offset_noise)
            scale = expand_sigma(edm.loss_weight(level, unet.sigma_data), frame)
            errors.append(scale * (estimate - frame).square())
            levels.append(edm.flow_level(edm.fold_offset(sigmas, unet.offset_noise)))
            found.append(features)
            memory = self._remember(memory, estimate.detach())
        weight = motion_weight(clean, now, self.config.motion_weight, generator) * valid[:, :, None, None, None]
        loss = (weight * torch.stack(errors, dim=1)).mean()
        return ChunkLoss(loss, self._features(found), torch.stack(levels, dim=1), {"wm/edm_loss": loss.detach()})

    def _draw_sigma(self, rows: int, generator: torch.Generator) -> Tensor:
        unet = self.config.unet
        return edm.draw_sigma(
            rows,
            mean=unet.log_sigma_mean,
            std=unet.log_sigma_std,
            lowest=unet.sigma_low,
            highest=unet.sigma_high,
            generator=generator,
        )

    def _steps(self, action: Tensor) -> tuple[Tensor, ...]:
        return action.unflatten(1, (self.config.chunk_frames, -1)).unbind(1)  # F of [B, s, 2A]

    def _past(self, reference: Tensor, memory: Tensor) -> Tensor:
        anchor = reference if self.config.reference else torch.zeros_like(reference)
        return torch.cat([anchor, memory.flatten(1, 2)], dim=1)

    def _remember(self, memory: Tensor, frame: Tensor) -> Tensor:
        frame = quantise(frame) if self.pixels else frame
        return torch.cat([memory[:, 1:], frame[:, None]], dim=1)

    def _features(self, frames: list[Tensor]) -> Tensor:
        return torch.cat([found + place for found, place in zip(frames, self.frame, strict=True)], dim=1)
