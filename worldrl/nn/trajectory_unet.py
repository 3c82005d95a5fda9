"""A U-Net over time for trajectories: convolutions of three steps at ``levels`` resolutions.

After the denoiser of policy-guided diffusion (Jackson et al. 2024), a Janner-style temporal U-Net: width doubles from level
to level, max-pooling down, nearest neighbours up, the noise level added as a bias per channel.

Shapes legend: ``B`` rows, ``C`` channels, ``L`` steps, ``d`` features of the first level.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.embed import sinusoidal


class NormedConvolution(nn.Module):
    """Convolution (length kept), an optional bias per channel from the noise level, group norm, ReLU."""

    def __init__(self, channels: int, out: int, groups: int, condition: int = 0, kernel: int = 3):
        super().__init__()
        self.pad = ((kernel - 1) // 2, kernel // 2)
        self.convolution = nn.Conv1d(channels, out, kernel)
        self.level = nn.Linear(condition, out) if condition else None
        self.norm = nn.GroupNorm(groups, out)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Map ``[B, channels, L]`` under ``[B, condition]`` to ``[B, out, L]``."""
        x = self.convolution(F.pad(x, self.pad))
        if self.level is not None:
            x = x + self.level(level)[:, :, None]
        return F.relu(self.norm(x))


class TrajectoryUNet(nn.Module):
    """Maps noisy trajectories and their levels to trajectories of the same shape; ``features`` divide by 8."""

    def __init__(self, channels: int, features: int, levels: int, groups: int):
        super().__init__()
        widths = [features * 2**level for level in range(levels)]
        self.frequencies = features // 4
        self.embed = nn.Sequential(
            nn.Linear(self.frequencies, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU()
        )
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for before, width in zip([channels, *widths], widths, strict=False):
            first, second = NormedConvolution(before, width, groups, features), NormedConvolution(width, width, groups)
            self.down.append(nn.ModuleList([first, second]))
        for width in reversed(widths[:-1]):
            grow = NormedConvolution(2 * width, width, groups, features, kernel=2)
            join, last = NormedConvolution(2 * width, width, groups), NormedConvolution(width, width, groups)
            self.up.append(nn.ModuleList([grow, join, last]))
        self.out = nn.Conv1d(features, channels, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Map ``[B, C, L]`` at ``level`` ``[B]`` (any monotone function of the noise) to ``[B, C, L]``."""
        embedded = self.embed(sinusoidal(level, self.frequencies))
        skips: list[Tensor] = []
        for first, second in self.down:  # pyright: ignore[reportGeneralTypeIssues]
            x = F.max_pool1d(x, 2) if skips else x
            x = second(first(x, embedded), embedded)
            skips.append(x)
        for (grow, join, last), skip in zip(self.up, reversed(skips[:-1]), strict=True):  # pyright: ignore[reportGeneralTypeIssues]
            x = grow(F.interpolate(x, size=skip.shape[2]), embedded)
            x = last(join(torch.cat([x, skip], dim=1), embedded), embedded)
        return self.out(x)
