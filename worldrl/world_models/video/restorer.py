"""Frame restorer: sharpens decoded frames with the episode's first image.

The camera does not move, so most of an imagined frame was visible in the first one. A small convolution over both
decides per pixel how much of it still holds, and corrects the rest: displayed images only, never the latents of the
rollout.

Shapes legend: ``N`` frames.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.convolution import convolution
from worldrl.world_models.video.config import RestorerConfig


class FrameRestorer(nn.Module):
    """Residual convolutions on blocks of pixels; an untrained one changes nothing."""

    def __init__(self, config: RestorerConfig):
        super().__init__()
        self.block = config.block
        pixels = self.block**2
        self.into = convolution(9 * pixels, config.width)
        self.hidden = nn.ModuleList([convolution(config.width, config.width) for _ in range(config.depth)])
        self.out = convolution(config.width, 4 * pixels)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)

    def forward(self, frame: Tensor, first: Tensor) -> Tensor:
        """Return ``frame + gate · (first - frame) + correction``; all ``[N, 3, Y, X]`` in [-1, 1], ``first`` of the episode."""
        inputs = torch.cat([frame, first, frame - first], dim=1)
        x = F.silu(self.into(F.pixel_unshuffle(inputs, self.block)))
        for layer in self.hidden:
            x = x + F.silu(layer(x))
        correction, gate = F.pixel_shuffle(self.out(x), self.block).split([3, 1], dim=1)
        return frame + gate * (first - frame) + correction
