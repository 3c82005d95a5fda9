"""Fréchet video distance (FVD): how far the clips that a model imagines are, as a set, from real ones.

T. Unterthiner, S. van Steenkiste, K. Kurach, R. Marinier, M. Michalski, S. Gelly, "Towards Accurate Generative Models of
Video: A New Metric & Challenges", 2018: each clip is described by the 400 logits of I3D; both sets are taken for Gaussian,
and ``|μ - ν|² + tr(Σ) + tr(Γ) - 2 tr((Σ Γ)^½)`` is reported.

Too few clips make it too large, and by much: a covariance of 400 features has 80,200 numbers to be told.

Shapes legend: ``E`` episodes, ``K`` clips of each, ``N`` clips, ``D`` features, ``F`` frames, ``Y X`` pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.statistics.bootstrap import jackknife
from worldrl.evaluation.world_model.i3d import CLASSES, load_i3d

CLIP_FRAMES = 16
SIDE = 224
"""Pixels that the network sees; ours are brought to it bilinearly."""
LEAST_VIDEOS = CLASSES + 1
"""Clips without which a covariance of the features is singular, whatever they show."""
USUAL_VIDEOS = 2048
"""Clips that published numbers are of."""
AT_ONCE = 4
"""Clips in one pass of the network; it bounds the memory."""


class Fvd:
    """Describes clips.

    Args:
        network: clips ``[N, 3, 16, 224, 224]`` in [-1, 1] to features ``[N, 400]``.
        device: where it is computed.
    """

    def __init__(self, network: nn.Module, device: torch.device | str = "cpu") -> None:
        self.network, self.device = network.to(device), torch.device(device)

    @classmethod
    def load(cls, file: Path, device: torch.device | str = "cpu") -> Fvd:
        """Read the weights of I3D, see :mod:`worldrl.evaluation.world_model.i3d`.

        Raises:
            ArtefactError: the file is missing, is something else, or holds other tensors.
        """
        return cls(load_i3d(file), device)

    @torch.no_grad()
    def features(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Describe a film's clips, one after the other without overlap; frames that fill no clip are left out.

        Args:
            frames: uint8 ``[F, Y, X, 3]``.

        Returns:
            float32 ``[K, 400]`` with ``K = F // 16``.
        """
        count = len(frames) // CLIP_FRAMES
        clips = torch.from_numpy(frames[: count * CLIP_FRAMES]).unflatten(0, (count, CLIP_FRAMES))
        found = [self.network(prepared(part.to(self.device))).float().cpu() for part in clips.split(AT_ONCE)]
        return torch.cat(found).numpy()


def prepared(clips: Tensor) -> Tensor:
    """Turn uint8 ``[N, 16, Y, X, 3]`` into what the network sees: ``[N, 3, 16, 224, 224]`` in [-1, 1]."""
    pictures = clips.flatten(0, 1).permute(0, 3, 1, 2).float()
    large = F.interpolate(pictures, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return (large / 127.5 - 1).unflatten(0, clips.shape[:2]).transpose(1, 2)


def check_videos(episodes: int, frames: int) -> None:
    """Refuse sets that are too small for a number.

    Args:
        episodes: how many.
        frames: predicted of each.

    Raises:
        SettingError: the frames fill no clip, or there are fewer than ``LEAST_VIDEOS`` clips.
    """
    each = frames // CLIP_FRAMES
    if episodes * each < LEAST_VIDEOS:
        raise SettingError(
            f"fvd: needs {LEAST_VIDEOS} clips of {CLIP_FRAMES} frames, one more than it has features; {episodes} episodes of "
            f"{frames} predicted frames hold {episodes * each}; give more episodes, longer horizons or fvd=null"
        )


def frechet_distance(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """Return the squared Fréchet distance of two sets, each taken for Gaussian, in float64.

    ``tr((Σ Γ)^½)`` is the sum of the singular values of ``Σ^½ Γ^½``: no root of a product that is not symmetric, and
    nothing breaks where a covariance is singular.

    Args:
        a: features ``[N, D]``, at least two rows.
        b: features ``[N', D]``, likewise.

    Raises:
        SettingError: fewer than two rows, or other features in one than in the other.
    """
    if min(len(a), len(b)) < 2 or a.shape[1:] != b.shape[1:]:
        raise SettingError(
            f"frechet_distance: needs two sets of two rows or more, of one width, got {a.shape} and {b.shape}"
        )
    (mean_a, cov_a), (mean_b, cov_b) = _gaussian(a), _gaussian(b)
    shared = np.linalg.svd(_root(cov_a) @ _root(cov_b), compute_uv=False).sum()
    distance = np.square(mean_a - mean_b).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * shared
    return max(0.0, float(distance))  # rounding alone makes it negative


def _gaussian(x: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    exact = x.astype(np.float64)
    return exact.mean(axis=0), np.atleast_2d(np.cov(exact, rowvar=False))


def _root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Symmetric square root; what rounding made negative is 0."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def fvd_report(real: NDArray[np.float32], imagined: NDArray[np.float32]) -> dict[str, Any]:
    """Return the distance with its jackknife interval over episodes, and how many clips it is of.

    An episode drawn twice tells nothing new, so a bootstrap's sets are smaller than the real ones and its distances larger:
    its interval would often not hold the number. Each episode is left out once instead.

    Args:
        real: features ``[E, K, D]`` of the true clips.
        imagined: likewise, of the same episodes.
    """
    pair = np.stack([real, imagined], axis=1)
    return {**jackknife(pair, _distance), "videos": real.shape[0] * real.shape[1], "clip_frames": CLIP_FRAMES}


def _distance(pair: NDArray[np.float32]) -> float:
    """Distance of ``[E, 2, K, D]``."""
    real, imagined = (pair[:, side].reshape(-1, pair.shape[-1]) for side in (0, 1))
    return frechet_distance(real, imagined)
