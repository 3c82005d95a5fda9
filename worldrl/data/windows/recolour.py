"""Style augmentation in image space, held to segments: other colours, light and texture, the same structure.

For recordings without a simulator that could show them again (``rollout.real.restyle`` does it exactly). Segments are the
clusters of an episode's colours; a pixel belongs to all of them a little, so blended edges stay blended. Each segment's
colour is moved, the largest one gets a texture that stands still behind what moves, and one light falls on everything.
Saturated segments keep their colour: instructions name it.

Colours are CIE L*a*b* (lightness 0 to 100). Shapes legend: ``T`` frames, ``V`` cameras, ``Y X`` pixels, ``k`` segments.
"""

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode

Image = NDArray[np.floating[Any]]

ROUNDS = 10  # Of k-means
SOFTNESS = 6.0  # Colour distance over which a pixel passes from one segment to the next


@dataclass(frozen=True)
class Recolouring:
    """How far a look may go."""

    segments: int = 6  # clusters of colours per episode.
    colour: float = 12.0  # standard deviation of a segment's change of lightness and of both colour axes.
    light: float = 0.15  # standard deviation of the slope of brightness across the image, and of its mean.
    texture: float = 4.0  # standard deviation of the largest segment's texture, in lightness.
    keep_chroma: float = 25.0  # segments at least this saturated change with the light only.

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.segments < 1:
            raise SettingError(f"image.segments must be at least 1, got {self.segments}")
        for name in ("colour", "light", "texture", "keep_chroma"):
            if getattr(self, name) < 0:
                raise SettingError(f"image.{name} must not be negative, got {getattr(self, name)}")


def recolour_episode(episode: Episode, config: Recolouring, *, generator: np.random.Generator) -> Episode:
    """Show an episode in another look, the same one in all its frames; each camera draws its own."""
    frames = [recolour(episode.frames[:, v], config, generator=generator) for v in range(episode.frames.shape[1])]
    return replace(episode, frames=np.stack(frames, axis=1))


def recolour(frames: NDArray[np.uint8], config: Recolouring, *, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Give one camera's frames, uint8 ``[T, Y, X, 3]``, other colours; ``generator`` chooses clusters and colours."""
    lab = to_lab(frames)
    pixels = lab.reshape(-1, 3)
    centres = cluster_colours(
        pixels[generator.integers(len(pixels), size=min(len(pixels), 4000))], config.segments, generator=generator
    )
    weight = segment_weights(lab, centres)  # [T, Y, X, k]
    size = (int(frames.shape[1]), int(frames.shape[2]))
    changed = lab + weight @ draw_colours(centres, config, generator)
    largest = int(weight.mean(axis=(0, 1, 2)).argmax())
    changed[..., 0] += weight[..., largest] * (config.texture * smooth_noise(size, generator))
    changed[..., 0] *= light_field(size, config.light, generator)
    return from_lab(changed)


def to_lab(frames: NDArray[np.uint8]) -> Image:
    """Convert uint8 RGB ``[..., Y, X, 3]`` to L*a*b* float32."""
    return _convert(frames.astype(np.float32) / 255, cv2.COLOR_RGB2Lab)


def from_lab(lab: Image) -> NDArray[np.uint8]:
    """Convert L*a*b* back to uint8 RGB; colours beyond the screen's are clipped."""
    lab = np.concatenate([lab[..., :1].clip(0, 100), lab[..., 1:].clip(-127, 127)], axis=-1)
    return (_convert(lab, cv2.COLOR_Lab2RGB).clip(0, 1) * 255).round().astype(np.uint8)


def _convert(image: Image, code: int) -> Image:
    flat = image.reshape(-1, image.shape[-2], 3).astype(np.float32)  # all frames below each other
    return np.asarray(cv2.cvtColor(flat, code), np.float32).reshape(image.shape)


def cluster_colours(pixels: Image, count: int, *, generator: np.random.Generator) -> Image:
    """Find cluster centres ``[k, 3]`` of colours ``[n, 3]``: k-means from k-means++ seeds (Arthur, Vassilvitskii 2007)."""
    centres = pixels[generator.integers(len(pixels), size=1)]
    for _ in range(count - 1):
        nearest = _squared_distance(pixels, centres).min(axis=1).astype(np.float64)
        if not nearest.any():  # fewer colours than clusters
            break
        centres = np.concatenate([centres, pixels[generator.choice(len(pixels), size=1, p=nearest / nearest.sum())]])
    for _ in range(ROUNDS):
        owner = _squared_distance(pixels, centres).argmin(axis=1)
        centres = np.stack(
            [pixels[owner == k].mean(axis=0) if (owner == k).any() else centre for k, centre in enumerate(centres)]
        )
    return centres


def segment_weights(lab: Image, centres: Image) -> Image:
    """How much each pixel belongs to each segment: ``[..., k]``, sums to 1."""
    distance = _squared_distance(lab, centres)
    weight = np.exp(-(distance - distance.min(axis=-1, keepdims=True)) / (2 * SOFTNESS**2))
    return weight / weight.sum(axis=-1, keepdims=True)


def _squared_distance(colours: Image, centres: Image) -> Image:
    return np.square(colours[..., None, :] - centres).sum(axis=-1)


def draw_colours(centres: Image, config: Recolouring, generator: np.random.Generator) -> Image:
    """Draw each segment's change of colour ``[k, 3]``; saturated segments do not change."""
    change = generator.normal(scale=config.colour, size=centres.shape).astype(np.float32)
    saturated = np.hypot(centres[:, 1], centres[:, 2]) >= config.keep_chroma
    return np.where(saturated[:, None], 0, change).astype(np.float32)


def smooth_noise(size: tuple[int, int], generator: np.random.Generator) -> Image:
    """Draw a texture ``[Y, X]`` of mean 0 and deviation 1, with spots of a few pixels."""
    noise = cv2.GaussianBlur(generator.normal(size=size).astype(np.float32), (0, 0), float(generator.uniform(0.7, 3)))
    return (noise - noise.mean()) / noise.std()


def light_field(size: tuple[int, int], strength: float, generator: np.random.Generator) -> Image:
    """Draw how brightly each pixel is lit ``[Y, X]``, 1 as recorded: a mean and a slope in some direction."""
    down, right = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in size), indexing="ij")
    mean, slope_down, slope_right = (float(v) for v in strength * generator.normal(size=3))
    return (1 + mean + slope_down * down + slope_right * right).clip(0.3, 1.7).astype(np.float32)
