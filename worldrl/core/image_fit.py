"""How images of one size become those of another. Shapes: ``Y X`` pixels of the given image, ``H W`` wanted."""

from dataclasses import dataclass
from enum import StrEnum

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError, nearest

Image = NDArray[np.uint8]
FIT = "fit"  # key of a fit in a dataset's header, and in what a policy was trained on


class Fit(StrEnum):
    """What happens to images of another size than a model's."""

    refuse = "refuse"
    stretch = "stretch"
    crop = "crop"
    letterbox = "letterbox"


@dataclass(frozen=True)
class ImageFit:
    """A model's square images of ``side`` pixels, and how images of another size become them."""

    side: int
    fit: Fit

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.side, self.side


WAYS = tuple(fit.value for fit in Fit if fit is not Fit.refuse)


def fit_image(image: Image, size: tuple[int, int], fit: Fit) -> Image:
    """Bring ``[Y, X, 3]`` to ``[H, W, 3]``, each pixel the mean of its area; ValueError where ``fit`` is ``refuse``.

    ``stretch`` scales both sides on their own, ``crop`` keeps the aspect and the largest central part, ``letterbox``
    the whole image between black bars. An odd pixel is at the right and at the bottom.
    """
    if image.shape[:2] == size:
        return image
    if fit is Fit.stretch:
        return _scaled(image, size)
    if fit is Fit.crop:
        return _scaled(_centre(image, _inside(size, (image.shape[0], image.shape[1]))), size)
    if fit is Fit.letterbox:
        rows, columns = _inside((image.shape[0], image.shape[1]), size)
        made = np.zeros((*size, image.shape[2]), np.uint8)
        _centre(made, (rows, columns))[:] = _scaled(image, (rows, columns))
        return made
    raise ValueError(f"an image of {image.shape[:2]} pixels is not one of {size}")


def squares(side: int, fit: Fit | str) -> ImageFit | None:
    """Square images of ``side`` pixels; None, those of a simulator's own size, for 0. SettingError for a fit that makes none."""
    if fit not in WAYS:
        raise SettingError(f"fit: unknown value {str(fit)!r}{nearest(str(fit), WAYS)}")
    return ImageFit(side, Fit(fit)) if side else None


def fit_name(fit: Fit) -> str:
    """A fit as an observation's spec states it: empty for ``refuse``, which fits nothing."""
    return "" if fit is Fit.refuse else fit.value


def keeps_aspect(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two sizes have the same aspect."""
    return size[0] * other[1] == size[1] * other[0]


def _inside(shape: tuple[int, int], frame: tuple[int, int]) -> tuple[int, int]:
    """The largest rows and columns with the aspect of ``shape`` inside ``frame``; at least one pixel each."""
    scale = min(frame[0] / shape[0], frame[1] / shape[1])
    rows, columns = (min(side, max(1, round(scale * own))) for own, side in zip(shape, frame, strict=True))
    return rows, columns


def _centre(image: Image, size: tuple[int, int]) -> Image:
    top, left = ((side - part) // 2 for side, part in zip(image.shape[:2], size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


def _scaled(image: Image, size: tuple[int, int]) -> Image:
    if image.shape[:2] == size:
        return image
    return np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
