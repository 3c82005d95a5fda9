"""Structural similarity of two images (SSIM).

Z. Wang, A. C. Bovik, H. R. Sheikh, E. P. Simoncelli, "Image quality assessment: from error visibility to structural
similarity", IEEE Transactions on Image Processing 13 (2004), with its constants: an 11×11 Gaussian window of standard
deviation 1.5 pixels, K₁ = 0.01, K₂ = 0.03, dynamic range 255, and only windows inside the image. The paper has grey images; here
the three colours are averaged.

Shapes legend: ``Y X`` pixels, ``y x`` windows per side (``Y - 10``, ``X - 10``).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError

WINDOW = 11
SIGMA = 1.5
RANGE = 255.0
C1, C2 = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2


def gaussian_window() -> NDArray[np.float64]:
    """Window along one axis, ``[11]``, with sum 1; the two-dimensional one is its outer product."""
    place = np.arange(WINDOW) - WINDOW // 2
    weight = np.exp(-np.square(place) / (2 * SIGMA**2))
    return weight / weight.sum()


@cache
def _band(size: int) -> NDArray[np.float64]:
    """Matrix ``[size - 10, size]`` that averages along an axis under every window."""
    band = np.zeros((size - WINDOW + 1, size))
    for row in range(len(band)):
        band[row, row : row + WINDOW] = gaussian_window()
    return band


def local_mean(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average ``[..., Y, X]`` under every window: ``[..., y, x]``."""
    rows, columns = image.shape[-2:]
    return _band(rows) @ image @ _band(columns).T


def ssim(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean structural similarity float64 ``[...]`` in [-1, 1] of pairs of images uint8 ``[..., Y, X, 3]``; 1 only for identical images.

    Raises SettingError (different shapes, or sides below 11 pixels).
    """
    if a.shape != b.shape or min(a.shape[-3:-1]) < WINDOW:
        raise SettingError(f"ssim: needs two images of one size from {WINDOW} pixels on, got {a.shape} and {b.shape}")
    x, y = (np.moveaxis(image, -1, -3).astype(np.float64) for image in (a, b))
    mean_x, mean_y = local_mean(x), local_mean(y)
    var_x = local_mean(x * x) - mean_x**2
    var_y = local_mean(y * y) - mean_y**2
    covariance = local_mean(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    structure = (2 * covariance + C2) / (var_x + var_y + C2)  # contrast and structure in one, as equation 13
    return (luminance * structure).mean(axis=(-3, -2, -1))
