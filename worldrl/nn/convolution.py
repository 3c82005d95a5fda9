"""Convolutional blocks that a condition modulates: a residual U-Net after DIAMOND (Alonso et al. 2024).

Shapes legend: ``B`` rows, ``V`` views, ``C`` channels, ``Y X`` pixels, ``D`` width of the condition, ``d`` channels of the U-Net.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.attention import Attention

GROUP = 32  # channels per group of a norm


def groups(channels: int) -> int:
    """Number of groups of :data:`GROUP` channels, at least one."""
    return max(1, channels // GROUP)


def convolution(channels: int, out: int, *, stride: int = 1) -> nn.Conv2d:
    """3 by 3 pixels, size kept at stride 1."""
    return nn.Conv2d(channels, out, 3, stride, padding=1)


class AdaptiveGroupNorm(nn.Module):
    """Group norm whose scale and shift come from a condition."""

    def __init__(self, channels: int, condition: int):
        super().__init__()
        self.groups = groups(channels)
        self.modulation = nn.Linear(condition, 2 * channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalise ``[B, C, Y, X]`` under ``[B, D]``."""
        scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
        return F.group_norm(x, self.groups, eps=1e-5) * (1 + scale) + shift


class ModulatedResidual(nn.Module):
    """Two convolutions, each after a modulated norm, added to the input; initially the (projected) input."""

    def __init__(self, channels: int, out: int, condition: int):
        super().__init__()
        self.skip = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)
        self.norm_1 = AdaptiveGroupNorm(channels, condition)
        self.conv_1 = convolution(channels, out)
        self.norm_2 = AdaptiveGroupNorm(out, condition)
        self.conv_2 = convolution(out, out)
        nn.init.zeros_(self.conv_2.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map ``[B, channels, Y, X]`` to ``[B, out, Y, X]``."""
        change = self.conv_1(F.silu(self.norm_1(x, condition)))
        change = self.conv_2(F.silu(self.norm_2(change, condition)))
        return self.skip(x) + change


class ImageAttention(nn.Module):
    """Self-attention over all pixels of a row's views, added to the input; initially the identity."""

    def __init__(self, channels: int, heads: int, views: int = 1):
        super().__init__()
        self.views = views
        self.norm = nn.GroupNorm(groups(channels), channels)
        self.attention = Attention(channels, heads)
        nn.init.zeros_(self.attention.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Update ``[B V, C, Y, X]``."""
        tokens = self.norm(x).flatten(2).transpose(1, 2)  # [B V, Y X, C]
        joint = tokens.unflatten(0, (-1, self.views)).flatten(1, 2)  # [B, V Y X, C]
        found = self.attention(joint).unflatten(1, (self.views, -1)).flatten(0, 1)
        return x + found.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Residual blocks at ``levels`` resolutions of ``channels`` channels, down and up, attention only at the bottom.

    Each of a row's ``views`` goes through the same convolutions alone; attention joins them.
    """

    def __init__(self, channels: int, levels: int, blocks: int, condition: int, heads: int, views: int = 1):
        super().__init__()

        def residuals(count: int, width: int) -> nn.ModuleList:
            return nn.ModuleList([ModulatedResidual(width, channels, condition) for _ in range(count)])

        self.down = nn.ModuleList([residuals(blocks, channels) for _ in range(levels)])
        self.shrink = nn.ModuleList([convolution(channels, channels, stride=2) for _ in range(levels - 1)])
        self.middle = residuals(2, channels)
        self.attention = nn.ModuleList([ImageAttention(channels, heads, views) for _ in range(2)])
        self.up = nn.ModuleList([residuals(blocks + 1, 2 * channels) for _ in range(levels)])
        self.grow = nn.ModuleList([convolution(channels, channels) for _ in range(levels - 1)])

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``[B V, d, Y, X]`` under ``[B V, D]`` to the same shape; also return the bottom, ``Y/2^l`` by ``X/2^l``."""
        skips: list[list[Tensor]] = []
        for level, residuals in enumerate(self.down):
            x = self.shrink[level - 1](x) if level else x
            skips.append([x])
            for block in residuals:  # pyright: ignore[reportGeneralTypeIssues]
                x = block(x, condition)
                skips[-1].append(x)
        for block, attention in zip(self.middle, self.attention, strict=True):
            x = attention(block(x, condition))
        bottom = x
        for level, (residuals, skip) in enumerate(zip(self.up, reversed(skips), strict=True)):
            x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0)) if level else x
            for block, beside in zip(residuals, reversed(skip), strict=True):  # pyright: ignore[reportArgumentType]
                x = block(torch.cat([x, beside], dim=1), condition)
        return x, bottom
