"""Fréchet video distance (FVD): how far the clips that a model imagines are, as a set, from real ones.

T. Unterthiner, S. van Steenkiste, K. Kurach, R. Marinier, M. Michalski, S. Gelly, "Towards Accurate Generative Models of
Video: A New Metric & Challenges", 2018: the features of a clip are the 400 logits of I3D. Both sets are treated as Gaussian:
``|μ - ν|² + tr(Σ) + tr(Γ) - 2 tr((Σ Γ)^½)``.

The estimate is much too large for few clips: a covariance of 400 features has 80,200 parameters.

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
"""Pixels per side of the network's input; frames are resized bilinearly."""
LEAST_VIDEOS = CLASSES + 1
"""With fewer clips the covariance of the features is always singular."""
USUAL_VIDEOS = 2048
"""Clips behind published numbers."""
AT_ONCE = 4
"""Clips per pass of the network; bounds the memory."""


class Fvd:
    """Computes features: ``network`` maps clips ``[N, 3, 16, 224, 224]`` in [-1, 1] to ``[N, 400]``."""

    def __init__(self, network: nn.Module, device: torch.device | str = "cpu") -> None:
        self.network, self.device = network.to(device), torch.device(device)

    @classmethod
    def load(cls, file: Path, device: torch.device | str = "cpu") -> Fvd:
        """Read the weights of I3D (:mod:`worldrl.evaluation.world_model.i3d`); ArtefactError where they are missing or wrong."""
        return cls(load_i3d(file), device)

    @torch.no_grad()
    def features(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features float32 ``[F // 16, 400]`` of consecutive clips of frames uint8 ``[F, Y, X, 3]``; remaining frames are left out."""
        count = len(frames) // CLIP_FRAMES
        clips = torch.from_numpy(frames[: count * CLIP_FRAMES]).unflatten(0, (count, CLIP_FRAMES))
        found = [self.network(prepared(part.to(self.device))).float().cpu() for part in clips.split(AT_ONCE)]
        return torch.cat(found).numpy()


def prepared(clips: Tensor) -> Tensor:
    """Map uint8 ``[N, 16, Y, X, 3]`` to the input of the network: ``[N, 3, 16, 224, 224]`` in [-1, 1]."""
    images = clips.flatten(0, 1).permute(0, 3, 1, 2).float()
    large = F.interpolate(images, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return (large / 127.5 - 1).unflatten(0, clips.shape[:2]).transpose(1, 2)


def check_videos(episodes: int, frames: int) -> None:
    """Refuse too small sets: episodes of ``frames`` predicted frames each.

    Raises SettingError (there are fewer than ``LEAST_VIDEOS`` clips).
    """
    each = frames // CLIP_FRAMES
    if episodes * each < LEAST_VIDEOS:
        raise SettingError(
            f"fvd: needs {LEAST_VIDEOS} clips of {CLIP_FRAMES} frames, one more than it has features; {episodes} episodes of "
            f"{frames} predicted frames hold {episodes * each}; give more episodes, longer horizons or fvd=null"
        )


def frechet_distance(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """Squared Fréchet distance of features ``[N, D]`` and ``[N', D]``, both treated as Gaussian, in float64.

    ``tr((Σ Γ)^½)`` is the sum of the singular values of ``Σ^½ Γ^½``, which exists for singular covariances, too.

    Raises SettingError (fewer than two rows, or different numbers of features).
    """
    if min(len(a), len(b)) < 2 or a.shape[1:] != b.shape[1:]:
        raise SettingError(
            f"frechet_distance: needs two sets of two rows or more, of one width, got {a.shape} and {b.shape}"
        )
    (mean_a, cov_a), (mean_b, cov_b) = _gaussian(a), _gaussian(b)
    shared = np.linalg.svd(_root(cov_a) @ _root(cov_b), compute_uv=False).sum()
    distance = np.square(mean_a - mean_b).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * shared
    return max(0.0, float(distance))  # rounding may make it negative


def _gaussian(x: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    exact = x.astype(np.float64)
    return exact.mean(axis=0), np.atleast_2d(np.cov(exact, rowvar=False))


def _root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Symmetric square root; eigenvalues that rounding made negative are 0."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def fvd_report(real: NDArray[np.float32], imagined: NDArray[np.float32]) -> dict[str, Any]:
    """Distance of features ``[E, K, D]`` with its jackknife interval over episodes, and the number of clips.

    A bootstrap draws episodes twice, so its sets are smaller, its distances larger, and its interval often misses the number.
    """
    pair = np.stack([real, imagined], axis=1)
    return {**jackknife(pair, _distance), "videos": real.shape[0] * real.shape[1], "clip_frames": CLIP_FRAMES}


def _distance(pair: NDArray[np.float32]) -> float:
    """Distance of ``[E, 2, K, D]``."""
    real, imagined = (pair[:, side].reshape(-1, pair.shape[-1]) for side in (0, 1))
    return frechet_distance(real, imagined)
