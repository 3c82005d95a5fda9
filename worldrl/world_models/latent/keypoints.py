"""Flat observations with a picture's latents in front to fewer numbers: where K things are, and what is there.

A small network that sees all cells of a latent frame at once learns the recorded frames by heart. Two convolutions that
look at each neighbourhood alike, and K fixed queries whose softmax over the cells gives an expected (x, y) and a value read
there (spatial softmax, :func:`worldrl.nn.vision.read_points`), leave little else to learn than places.

Shapes legend: ``B`` rows, ``c h w`` a latent frame, ``S = c h w + rest`` observation, ``C`` channels, ``K`` keypoints,
``N = h w`` cells.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldrl.core.errors import SettingError
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.nn.convolution import convolution
from worldrl.nn.vision import cell_coordinates, read_points

KIND = "latent-keypoints"
STD_FLOOR = 1e-3
"""Least standard deviation of a channel, so that one that never changes stays finite."""


class KeypointEncoder(nn.Module):
    """Replace the latent frame in an observation by K keypoints; the rest of it passes unchanged.

    Args:
        latent_shape: ``(c, h, w)``.
        keypoints: ``K``.
        width: ``C`` of the convolutions.

    Attributes:
        points_size: numbers that take the latents' place: ``2 K`` coordinates, ``K`` values.
    """

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
        """Take the channels' mean and standard deviation from observations ``[B, S]``."""
        latent = obs[:, : self.latent_size].unflatten(1, self.latent_shape).double()
        self.mean.copy_(latent.mean(dim=(0, 2, 3))[:, None, None])
        self.std.copy_(latent.std(dim=(0, 2, 3), correction=0).clamp_min(STD_FLOOR)[:, None, None])

    @torch.no_grad()
    def standardise(self, seen: Tensor) -> None:
        """Give points in units of their deviations from now on; ``seen [B, 3 K + rest]`` is what a dataset showed until now.

        In a picture's units an object moves by a twentieth where a hand's command moves by one, and a critic overlooks it.
        """
        points = seen[:, : self.points_size].double()
        self.point_mean.copy_(points.mean(dim=0))
        self.point_std.copy_(points.std(dim=0, correction=0).clamp_min(STD_FLOOR))

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations ``[B, S]`` to ``[B, 3 K + rest]``: all (x, y), all values, what followed the latents.

        Places lie in [-1, 1] until :meth:`standardise`.
        """
        latent, rest = obs[:, : self.latent_size], obs[:, self.latent_size :]
        x = (latent.unflatten(1, self.latent_shape) - self.mean) / self.std
        place = self.place.T.unflatten(1, self.latent_shape[1:]).expand(len(obs), -1, -1, -1)
        x = functional.gelu(self.first(torch.cat([x, place], dim=1)))
        cells = functional.gelu(self.second(x)).flatten(2).transpose(1, 2)  # [B, N, C]
        points = read_points(cells, self.place, self.query.expand(len(obs), -1, -1), self.value)
        return torch.cat([(points - self.point_mean) / self.point_std, rest], dim=1)

    def frozen(self) -> Self:
        """Let no gradient change it any more; return itself."""
        return self.eval().requires_grad_(requires_grad=False)

    def save(self, folder: Path) -> None:
        """Write weights and sizes as an artefact folder."""
        write_artefact(folder, kind=KIND, config=self.sizes, tensors=self.state_dict())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read :meth:`save`'s folder, frozen; ArtefactError when it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=KIND)
        with fitting(artefact):
            encoder = cls(**artefact.config)
            load_weights(encoder, artefact)
        return encoder.frozen()
