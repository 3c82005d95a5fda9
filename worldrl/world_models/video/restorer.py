"""Frame restorer: what the codec and the dream have blurred, put back with the help of the episode's first frame.

The camera stands still, and most of what a dream shows was there from the beginning: the table, the objects that nobody has
touched. The codec shows all of it through a 16-number keyhole per patch, with seams between the patches. A small convolution
sees the decoded frame beside the true first one and decides, pixel by pixel, how much of the first still holds and what to
correct. It changes what is shown, to policies and people, never the latents: the dream goes on as it would without.

Shapes legend: ``N`` frames.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.convolution import convolution
from worldrl.world_models.video.config import RestorerConfig


class FrameRestorer(nn.Module):
    """Residual convolutions on blocks of pixels; an untrained one changes nothing.

    Args:
        config: sizes.
    """

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
        """Restore decoded frames.

        Args:
            frame: ``[N, 3, Y, X]`` in [-1, 1].
            first: of each frame's episode, likewise.

        Returns:
            ``frame + gate · (first - frame) + correction``, ``[N, 3, Y, X]``.
        """
        seen = torch.cat([frame, first, frame - first], dim=1)
        x = F.silu(self.into(F.pixel_unshuffle(seen, self.block)))
        for layer in self.hidden:
            x = x + F.silu(layer(x))
        correction, gate = F.pixel_shuffle(self.out(x), self.block).split([3, 1], dim=1)
        return frame + gate * (first - frame) + correction
