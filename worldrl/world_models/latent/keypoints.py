"""Observations that begin with an image's latents, reduced to K keypoints: places and values.

A small network over all cells of a latent frame memorises the recorded frames. Two convolutions and K fixed queries
(spatial softmax, :func:`worldrl.nn.vision.find_points`) can learn little besides places.

Shapes legend: ``B`` rows, ``S = c h w + rest`` observation, ``C`` channels, ``K`` keypoints, ``N = h w`` cells.
"""

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldrl.core.errors import SettingError
from worldrl.nn.convolution import convolution
from worldrl.nn.stored import StoredModule
from worldrl.nn.vision import cell_coordinates, find_points

STD_FLOOR = 1e-3  # least standard deviation, so that a constant channel stays finite


class KeypointEncoder(StoredModule):
    """Replaces the latent frame ``(c, h, w)`` of an observation by 2 K coordinates and K values."""

    kind = "latent-keypoints"
    mean: Tensor
    std: Tensor
    point_mean: Tensor
    point_std: Tensor
    place: Tensor

    def __init__(self, latent_shape: tuple[int, int, int], keypoints: int, width: int = 64) -> None:
        super().__init__()
        if keypoints < 1 or width < 1:
            raise SettingError(f"keypoints and width must be at least 1, got {keypoints} and {width}")
        channels, height, cells_across = self.latent_shape = tuple(latent_shape)
        self.sizes = {"latent_shape": list(latent_shape), "keypoints": keypoints, "width": width}
        self.points_size = 3 * keypoints
        self.first = convolution(channels + 2, width)
        self.second = convolution(width, width)
        self.query = nn.Parameter(torch.randn(keypoints, width) / width**0.5)
        self.value = nn.Linear(width, 1)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        self.register_buffer("point_mean", torch.zeros(self.points_size))
        self.register_buffer("point_std", torch.ones(self.points_size))
        place = cell_coordinates(height, cells_across, device=torch.device("cpu"), dtype=torch.float32)
        self.register_buffer("place", place, persistent=False)

    @property
    def latent_size(self) -> int:
        """Numbers of a flattened latent frame."""
        return torch.Size(self.latent_shape).numel()

    def measure(self, obs: Tensor) -> None:
        """Set the channels' mean and standard deviation from observations ``[B, S]``."""
        latent = obs[:, : self.latent_size].unflatten(1, self.latent_shape).double()
        self.mean.copy_(latent.mean(dim=(0, 2, 3))[:, None, None])
        self.std.copy_(latent.std(dim=(0, 2, 3), correction=0).clamp_min(STD_FLOOR)[:, None, None])

    @torch.no_grad()
    def standardise(self, outputs: Tensor) -> None:
        """Scale points by their mean and deviation in outputs ``[B, 3 K + rest]`` of a dataset from now on.

        In image units an object moves by a twentieth where a gripper command moves by one, and a critic would ignore
        it.
        """
        points = outputs[:, : self.points_size].double()
        self.point_mean.copy_(points.mean(dim=0))
        self.point_std.copy_(points.std(dim=0, correction=0).clamp_min(STD_FLOOR))

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations ``[B, S]`` to ``[B, 3 K + rest]``: all (x, y) in [-1, 1], all values, the rest."""
        latent, rest = obs[:, : self.latent_size], obs[:, self.latent_size :]
        x = (latent.unflatten(1, self.latent_shape) - self.mean) / self.std
        place = self.place.T.unflatten(1, self.latent_shape[1:]).expand(len(obs), -1, -1, -1)
        x = functional.gelu(self.first(torch.cat([x, place], dim=1)))
        cells = functional.gelu(self.second(x)).flatten(2).transpose(1, 2)  # [B, N, C]
        points = find_points(cells, self.place, self.query.expand(len(obs), -1, -1), self.value).flat
        return torch.cat([(points - self.point_mean) / self.point_std, rest], dim=1)

    def frozen(self) -> Self:
        """Disable all gradients and return itself."""
        return self.eval().requires_grad_(requires_grad=False)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Self:
        """Read :meth:`save`'s folder, frozen; ArtefactError when it is missing, damaged or of another kind."""
        return super().load(folder, device).frozen()
