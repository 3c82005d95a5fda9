"""Image encoder for precise localisation, and the augmentations of its training.

A stride-4 stem and a few residual 3×3 convolutions, modulated by the instruction (FiLM: γ(text) x + β(text)), give
cells. Instruction-dependent queries attend to them: each softmax over the cells gives an expected (x, y), finer than a
cell, and the features there (spatial softmax, after "End-to-End Training of Deep Visuomotor Policies"). Tensors are in
channels-last memory, which is twice as fast on a CPU.

Shapes legend: ``B`` rows, ``Y X`` pixels, ``C`` channels, ``K`` keypoints, ``N`` cells.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldrl.core.device import autocast
from worldrl.core.errors import SettingError
from worldrl.core.rng import draw

STRIDE = 4  # pixels per cell of the feature map
SIDES = 8  # divisor of an image's sides


def image_to_float(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Map uint8 ``[B, Y, X, 3]`` to float ``[B, 3, Y, X]`` in [-1, 1], in channels-last memory."""
    return (image.to(dtype) / 127.5 - 1).permute(0, 3, 1, 2)


def random_offsets(rows: int, *, pixels: int, generator: torch.Generator) -> Tensor:
    """Draw offsets for :func:`shift`, int64 ``[B, 2]`` of at most ``pixels`` along both axes; two draws a row."""
    return draw(partial(torch.randint, -pixels, pixels + 1), (rows, 2), generator)


def shift(image: Tensor, offset: Tensor) -> Tensor:
    """Show images ``[B, Y, X, 3]`` from ``offset`` ``[B, 2]`` pixels further down and right, repeating the border.

    What they show moves up and left by as much.
    """
    rows, height, width = image.shape[:3]
    y = (torch.arange(height, device=image.device) + offset[:, :1]).clamp(0, height - 1)  # [B, Y]
    x = (torch.arange(width, device=image.device) + offset[:, 1:]).clamp(0, width - 1)  # [B, X]
    row = torch.arange(rows, device=image.device)
    return image[row[:, None, None], y[:, :, None], x[:, None, :]]


def colour_jitter(image: Tensor, *, strength: float, generator: torch.Generator) -> Tensor:
    """Change brightness and channel gains of each uint8 image ``[B, Y, X, 3]``; five draws a row.

    Gains are 1 ± ``strength`` per image and 1 ± ``strength``/2 per channel, offsets ± 32 ``strength`` grey levels.
    """
    drawn = (2 * draw(torch.rand, (len(image), 5), generator) - 1).to(image.device) * strength
    gain = (1 + drawn[:, :1]) * (1 + 0.5 * drawn[:, 1:4])  # [B, 3]
    changed = image.float() * gain[:, None, None] + 32 * drawn[:, None, None, 4:]
    return changed.round().clamp(0, 255).to(torch.uint8)


def cell_coordinates(height: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the cells' centres, float ``[height * width, 2]`` as (x, y), the image spanning [-1, 1]."""
    y = (torch.arange(height, device=device, dtype=dtype) + 0.5) * 2 / height - 1
    x = (torch.arange(width, device=device, dtype=dtype) + 0.5) * 2 / width - 1
    return torch.stack([x.repeat(height), y.repeat_interleave(width)], dim=1)


@dataclass(frozen=True)
class Points:
    """What queries find in images."""

    place: Tensor  # float ``[B, K, 2]``, expected (x, y) in [-1, 1].
    value: Tensor  # float ``[B, K, value_width]``, expected features.
    score: Tensor  # float ``[B, K, N]``; its softmax is the probability of each cell.
    cells: Tensor  # float ``[N, 2]`` or ``[B, N, 2]``, the cells' places.

    @property
    def flat(self) -> Tensor:
        """All places, then all values, ``[B, K (2 + value_width)]``."""
        return torch.cat([self.place.flatten(1), self.value.flatten(1)], dim=1)

    def before_shift(self, offset: Tensor, size: tuple[int, int]) -> "Points":
        """Return where they lay in images of ``size`` pixels before :func:`shift` by ``offset``."""
        half = self.place.new_tensor([size[1] / 2, size[0] / 2])
        moved = (offset.to(self.place).flip(1) / half)[:, None]
        return replace(self, place=self.place + moved, cells=self.cells + moved)


def find_points(cells: Tensor, place: Tensor, query: Tensor, value: nn.Module) -> Points:
    """Find expected places of ``K`` queries and the features there (spatial softmax).

    ``cells`` are features ``[B, N, C]`` at ``place`` ``[N, 2]``; ``query`` is ``[B, K, C]``; ``value`` maps a cell's
    features.
    """
    # Not divided by sqrt(C): a sharp initial softmax learns the points several times faster than a diffuse one.
    score = query @ cells.transpose(1, 2)
    heat = score.softmax(dim=2)  # [B, K, N]
    return Points(heat @ place, heat @ value(cells), score, place)


class FilmBlock(nn.Module):
    """Residual pair of 3×3 convolutions; the instruction scales and shifts the first one's output."""

    def __init__(self, width: int, text_width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.film = nn.Linear(text_width, 2 * width)
        # Starts as the identity: no normalisation layer is needed, and those are slow on a CPU.
        for parameter in (*self.second.parameters(), *self.film.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Map ``[B, C, h, w]`` and ``[B, text_width]`` to ``[B, C, h, w]``."""
        scale, shift = self.film(text)[:, :, None, None].chunk(2, dim=1)
        return x + self.second(functional.relu(self.first(functional.relu(x)) * (1 + scale) + shift))


class ImageEncoder(nn.Module):
    """Images and instruction vectors to features ``[B, out_width]``; training may set ``compute_dtype`` bfloat16.

    With ``place`` a cell's features hold its place. Without, they move with the image, so that points found in few
    images are found elsewhere too.
    """

    def __init__(
        self,
        text_width: int,
        *,
        width: int = 48,
        blocks: int = 2,
        keypoints: int = 16,
        value_width: int = 16,
        place: bool = True,
    ) -> None:
        super().__init__()
        self.compute_dtype = torch.float32
        self.keypoints, self.value_width = keypoints, value_width
        self.out_width = keypoints * (2 + value_width)
        # 8×8 windows every 4 pixels: neighbours overlap by half, so that every edge is whole in one of them.
        self.stem = nn.Conv2d(3, width, 2 * STRIDE, stride=STRIDE, padding=STRIDE // 2)
        self.place = nn.Linear(2, width) if place else None
        self.blocks = nn.ModuleList([FilmBlock(width, text_width) for _ in range(blocks)])
        self.query = nn.Linear(text_width, keypoints * width)
        self.value = nn.Linear(width, value_width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Encode uint8 ``[B, Y, X, 3]``, sides multiples of 8: the points' (x, y) in [-1, 1], then their features."""
        return self.find(image, text).flat

    def find(self, image: Tensor, text: Tensor, *, offset: Tensor | None = None) -> Points:
        """Find the points of :meth:`forward`; of images shifted by ``offset`` ``[B, 2]`` those before."""
        if image.shape[1] % SIDES or image.shape[2] % SIDES:
            raise SettingError(f"image: sides must be multiples of {SIDES}, got {tuple(image.shape[1:3])}; resize it")
        cells, place = self.features(image, text)
        query = self.query(text).unflatten(1, (self.keypoints, -1))  # [B, K, C]
        found = find_points(cells, place, query, self.value)
        return found if offset is None else found.before_shift(offset, (image.shape[1], image.shape[2]))

    def features(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells' features ``[B, N, C]`` and their places ``[N, 2]``."""
        pixels = image_to_float(image, self.stem.weight.dtype)
        size = [side // STRIDE for side in image.shape[1:3]]
        place = cell_coordinates(*size, device=pixels.device, dtype=pixels.dtype)
        with autocast(image.device, self.compute_dtype):
            x = self.stem(pixels)
            if self.place is not None:
                x = x + self.place(place).T.unflatten(1, size)
            for block in self.blocks:
                x = block(x, text)
        # Back in the weights' type: a bfloat16 coordinate is off by a quarter of a pixel in 64.
        return functional.relu(x).to(pixels.dtype).flatten(2).transpose(1, 2), place
