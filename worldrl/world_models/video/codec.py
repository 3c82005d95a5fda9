"""Frame codecs: a frame to its latent and back, one frame at a time.

The patch codec makes an 8×8 grid of latent vectors of 64×64 RGB. Its latents have unit root-mean-square per token, so
they need no stored statistics and match the flow's unit noise. The identity codec returns the pixels.

Each view of a sheet is encoded and decoded alone.

Shapes legend: ``B`` rows, ``T`` frames, ``V`` views, ``c`` latent channels, ``h w`` latent grid, ``n = h w`` tokens.
"""

import torch
from torch import Tensor, nn

from worldrl.core.interfaces import Logs
from worldrl.core.rng import draw, on_device, own_rows
from worldrl.nn.blocks import Block
from worldrl.nn.embed import patchify, unpatchify
from worldrl.world_models.video.config import CodecConfig


def to_unit(frames: Tensor) -> Tensor:
    """Map uint8 ``[..., Y, X, 3]`` to float ``[..., 3, Y, X]`` in [-1, 1]."""
    return frames.movedim(-1, -3).float() / 127.5 - 1


def to_uint8(frames: Tensor) -> Tensor:
    """Map float ``[..., 3, Y, X]`` in [-1, 1] to uint8 ``[..., Y, X, 3]``."""
    return ((frames.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).movedim(-3, -1)


def as_rows(sheets: Tensor, views: int) -> Tensor:
    """Cut sheets ``[B, ..., V h, w]`` into one row per view, ``[B V, ..., h, w]``."""
    return sheets if views == 1 else torch.stack(sheets.chunk(views, dim=-2), dim=1).flatten(0, 1)


def as_sheets(rows: Tensor, views: int) -> Tensor:
    """Undo :func:`as_rows`."""
    return rows if views == 1 else torch.cat(rows.unflatten(0, (-1, views)).unbind(dim=1), dim=-2)


def quantise(frames: Tensor) -> Tensor:
    """Round floats in [-1, 1] to the 256 levels of an image, as :func:`to_uint8` and :func:`to_unit` would."""
    return ((frames.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def salience_weight(frames: Tensor, salience: float) -> Tensor:
    """Weight pixels ``[N, 3, Y, X]`` by their distance from the batch's mean frame: ``[N, 1, Y, X]``, mean 1."""
    difference = (frames - frames.mean(dim=0, keepdim=True)).abs().mean(dim=1, keepdim=True)
    weight = 1 + salience * (difference / 0.5).clamp(max=1)
    return weight / weight.mean()


class PatchCodec(nn.Module):
    """Encoder and decoder of a few attention blocks over patches."""

    def __init__(self, config: CodecConfig, views: int = 1):
        super().__init__()
        self.config, self.views = config, views
        self.side = config.image_size // config.patch
        tokens, pixels = self.side**2, 3 * config.patch**2
        self.encode_in = nn.Linear(pixels, config.width)
        self.encode_position = nn.Parameter(0.02 * torch.randn(tokens, config.width))
        self.encoder = nn.Sequential(*[Block(config.width, config.heads) for _ in range(config.depth)])
        self.encode_out = nn.Linear(config.width, config.channels)
        self.decode_in = nn.Linear(config.channels, config.width)
        self.decode_position = nn.Parameter(0.02 * torch.randn(tokens, config.width))
        self.decoder = nn.Sequential(*[Block(config.width, config.heads) for _ in range(config.depth)])
        self.decode_norm = nn.LayerNorm(config.width)
        self.decode_out = nn.Linear(config.width, pixels)

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """``(c, V h, w)`` of one frame."""
        return self.config.channels, self.views * self.side, self.side

    def encode(self, frames: Tensor) -> Tensor:
        """Map float ``[B, T, 3, V Y, X]`` in [-1, 1] to ``[B, T, c, V h, w]`` with unit root-mean-square per token."""
        shape = frames.shape[:2]
        views = frames.shape[-2] // self.config.image_size
        pixels = as_rows(frames.flatten(0, 1), views)
        tokens = self.encode_in(patchify(pixels, self.config.patch)) + self.encode_position
        latent = self.encode_out(self.encoder(tokens))  # [B T, n, c]
        latent = latent * torch.rsqrt(latent.square().mean(dim=-1, keepdim=True) + 1e-6)
        grid = latent.transpose(1, 2).reshape(len(latent), self.config.channels, self.side, self.side)
        return as_sheets(grid, views).unflatten(0, shape)

    def decode(self, latent: Tensor) -> Tensor:
        """Map ``[B, T, c, V h, w]`` to float ``[B, T, 3, V Y, X]``, about in [-1, 1]."""
        shape = latent.shape[:2]
        views = latent.shape[-2] // self.side
        grid = as_rows(latent.flatten(0, 1), views)
        tokens = self.decode_in(grid.flatten(2).transpose(1, 2)) + self.decode_position
        pixels = self.decode_out(self.decode_norm(self.decoder(tokens)))  # [B T V, n, 3 p p]
        return as_sheets(unpatchify(pixels, self.config.patch, self.side), views).unflatten(0, shape)

    def loss(self, frames: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Logs]:
        """Reconstruction loss of uint8 frames ``[N, Y, X, 3]``: salience-weighted squared plus absolute error.

        Of the rows of the generator's part, where it has one.
        """
        whole = to_unit(frames)
        target = own_rows(whole, generator)
        latent = self.encode(target[:, None])
        noise = draw(torch.randn, latent.shape, on_device(generator, latent.device), device=latent.device)
        decoded = self.decode(latent + self.config.latent_noise * noise)[:, 0]
        weight = own_rows(salience_weight(whole, self.config.salience), generator)  # the mean frame is the batch's
        error = decoded - target
        squared = error.square()
        # The absolute error keeps small objects sharp, which the squared one alone blurs.
        loss = (weight * (squared + 0.1 * error.abs())).mean()
        psnr = 10 * torch.log10(4 / squared.mean().detach().clamp_min(1e-10))
        return loss, {"codec/loss": loss.detach(), "codec/psnr_db": psnr}


class IdentityCodec(nn.Module):
    """Latents are pixels in [-1, 1]; nothing is learned."""

    def __init__(self, config: CodecConfig, views: int = 1):
        super().__init__()
        self.config, self.views = config, views

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """``(3, V Y, X)`` of one frame."""
        return 3, self.views * self.config.image_size, self.config.image_size

    def encode(self, frames: Tensor) -> Tensor:
        """Return ``[B, T, 3, Y, X]`` in [-1, 1] unchanged."""
        return frames

    def decode(self, latent: Tensor) -> Tensor:
        """Return ``[B, T, 3, Y, X]`` unchanged."""
        return latent
