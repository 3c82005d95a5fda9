"""Frame restorer: sharpens decoded frames with the episode's first image.

The camera does not move, so most of an imagined frame was visible in the first one. A small convolution over both
decides per pixel how much of it still holds, and corrects the rest: displayed images only, never the latents of the
rollout. Each view has a restorer of its own: what holds of a still camera does not hold of a hand's.

Shapes legend: ``N`` frames, ``V`` views.
"""

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.convolution import convolution
from worldrl.world_models.video.config import RestorerConfig


class FrameRestorer(nn.Module):
    """Residual convolutions on blocks of pixels, for each of ``views``; an untrained one changes nothing."""

    def __init__(self, config: RestorerConfig, views: int = 1):
        super().__init__()
        self.block = config.block
        pixels = self.block**2
        self.into = convolution(9 * pixels, config.width)
        self.hidden = nn.ModuleList([convolution(config.width, config.width) for _ in range(config.depth)])
        self.out = convolution(config.width, 4 * pixels)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)
        self.further = nn.ModuleList([FrameRestorer(config) for _ in range(views - 1)])
        # On a CPU the convolutions then take three quarters of the time. torch's overloads leave this keyword out.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, frame: Tensor, first: Tensor) -> Tensor:
        """Restore ``[N V, 3, Y, X]`` in [-1, 1], the views of a moment in turn; ``first`` of the episode."""
        if not self.further:
            return self.restored(frame, first)
        rows = [part.unflatten(0, (-1, 1 + len(self.further))).unbind(dim=1) for part in (frame, first)]
        shown = [one(*pair) for one, *pair in zip((self.restored, *self.further), *rows, strict=True)]
        return torch.stack(shown, dim=1).flatten(0, 1)

    def restored(self, frame: Tensor, first: Tensor) -> Tensor:
        """Return ``frame + gate · (first - frame) + correction`` of the first view, ``[N, 3, Y, X]``."""
        inputs = torch.cat([frame, first, frame - first], dim=1)
        x = F.silu(self.into(F.pixel_unshuffle(inputs, self.block)))
        for layer in self.hidden:
            x = x + F.silu(layer(x))
        correction, gate = F.pixel_shuffle(self.out(x), self.block).split([3, 1], dim=1)
        return frame + gate * (first - frame) + correction


def of_each_view(tensors: Mapping[str, Tensor], views: int) -> dict[str, Tensor]:
    """Return a world model's weights; a restorer that all ``views`` shared becomes one of each."""
    own = re.compile(r"^restorer\.(?!further\.)")
    shared = {name: value for name, value in tensors.items() if own.match(name)}
    copies = {
        own.sub(f"restorer.further.{k}.", name): value for k in range(views - 1) for name, value in shared.items()
    }
    return {**copies, **tensors}
