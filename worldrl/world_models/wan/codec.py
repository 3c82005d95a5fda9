"""Wan's causal autoencoder as a codec of whole clips: the first frame alone, then groups of four frames.

A latent frame depends on the frames before it, never on later ones. Encoding reference and memory alone therefore
gives the very latents that a training clip begins with, while a future frame can only be decoded after its context.

Each view of a sheet is encoded and decoded alone.

Shapes legend: ``B`` clips, ``V`` views, ``T = 1 + 4 (f - 1)`` frames, ``f`` latent frames, ``c h w`` latent and ``Y X``
pixels of a view.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.device import autocast, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.world_models.video.codec import as_rows, as_sheets, to_uint8, to_unit
from worldrl.world_models.wan.config import GROUP, WanCodecConfig
from worldrl.world_models.wan.folder import latent_shape


class WanCodec(nn.Module):
    """Encode and decode clips of uint8 frames with diffusers' ``AutoencoderKLWan``; the weights are frozen."""

    mean: Tensor
    std: Tensor

    def __init__(self, vae: Any, config: WanCodecConfig, views: int = 1):
        super().__init__()
        self.config, self.views = config, views
        self.vae = vae.eval().requires_grad_(False)
        channels, height, width = latent_shape(vae.config, config.image_size)
        self.latent_shape = channels, views * height, width
        for name in ("mean", "std"):
            values = torch.tensor(vae.config[f"latents_{name}"], device="cpu")
            if len(values) != self.latent_shape[0]:
                raise SettingError(f"wan.folder: vae/config.json needs {self.latent_shape[0]} latents_{name}")
            self.register_buffer(name, values[:, None, None, None], persistent=False)

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """Map uint8 ``[B, T, V Y, X, 3]`` to the posterior's mode ``[B, f, c, V h, w]``; SettingError: size or number."""
        size, rows = self.config.image_size, self.views * self.config.image_size
        if tuple(frames.shape[2:]) != (rows, size, 3) or frames.shape[1] % GROUP != 1:
            raise SettingError(
                f"frames must be [B, 1 + {GROUP}k, {rows}, {size}, 3], got {list(frames.shape)}; give "
                "model.codec.image_size the size of the recorded frames"
            )
        views = as_rows(frames.movedim(-1, -3), self.views).movedim(-3, -1)
        return as_sheets(self._by_rows(self._encode, views), self.views)

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        """Map ``[B, f, c, V h, w]`` to uint8 ``[B, T, V Y, X, 3]``."""
        views = self._by_rows(self._decode, as_rows(latent, self.views))
        return as_sheets(views.movedim(-1, -3), self.views).movedim(-3, -1)

    def _by_rows(self, work: Callable[[Tensor], Tensor], clips: Tensor) -> Tensor:
        # In its own number type, whatever the caller's autocast says.
        with autocast(self.mean.device, resolve_dtype(self.config.dtype)):
            return torch.cat([work(part) for part in clips.split(self.config.rows)])

    def _encode(self, frames: Tensor) -> Tensor:
        video = to_unit(frames.to(self.mean.device)).transpose(1, 2)  # [B, 3, T, Y, X]
        latent = self.vae.encode(video).latent_dist.mode().float()  # [B, c, f, h, w]
        return ((latent - self.mean) / self.std).transpose(1, 2).contiguous()

    def _decode(self, latent: Tensor) -> Tensor:
        video = self.vae.decode(latent.transpose(1, 2) * self.std + self.mean).sample
        return to_uint8(video.float().transpose(1, 2))
