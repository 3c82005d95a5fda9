"""Column statistics in lerobot's layout, per episode, and how they merge.

Minimum, maximum, mean and deviation merge exactly; quantiles as lerobot's own ``aggregate_stats`` does, as the
count-weighted mean of the episodes', which is an approximation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError

Stats = dict[str, Any]
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
MAX_IMAGES = 16
"""Frames per camera and episode that enter image statistics; lerobot samples as well."""


def column_stats(values: NDArray[Any]) -> Stats:
    """Describe a column ``[rows, size]``: min, max, mean, std and quantiles ``[size]``, ``count`` as ``[rows]``."""
    values = values.astype(np.float64)
    stats = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    stats |= dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values()), axis=0), strict=True))
    return {**{name: value.tolist() for name, value in stats.items()}, "count": [len(values)]}


def image_stats(frames: NDArray[np.uint8]) -> Stats:
    """Describe at most :data:`MAX_IMAGES` of ``[rows, Y, X, 3]`` per channel in [0, 1], as ``[3][1][1]``."""
    chosen = np.unique(np.linspace(0, len(frames) - 1, MAX_IMAGES).round().astype(int))
    channels = [_channel_stats(frames[chosen, ..., channel].ravel()) for channel in range(3)]
    stats: Stats = {name: [[[channel[name]]] for channel in channels] for name in channels[0]}
    return {**stats, "count": [len(chosen)]}


def _channel_stats(pixels: NDArray[np.uint8]) -> dict[str, float]:
    """Describe uint8 values by their histogram: exact, and faster than sorting them."""
    counts = np.bincount(pixels, minlength=256)
    levels = np.arange(256) / 255.0
    share = counts / counts.sum()
    seen = np.flatnonzero(counts)
    mean = float(share @ levels)
    below = np.cumsum(share)
    quantiles = {name: float(levels[min(int(np.searchsorted(below, q)), 255)]) for name, q in QUANTILES.items()}
    spread = float(np.sqrt(share @ (levels - mean) ** 2))
    return {"min": float(levels[seen[0]]), "max": float(levels[seen[-1]]), "mean": mean, "std": spread, **quantiles}


def merge_stats(episodes: Sequence[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Merge the statistics of episodes that have the same columns; none for no episodes. Damaged ones are an ArtefactError."""
    try:
        return {name: _merge_column([stats[name] for stats in episodes]) for name in episodes[0]} if episodes else {}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArtefactError(f"statistics of the episodes do not fit together ({error}); record them again") from error


def _merge_column(parts: Sequence[Stats]) -> Stats:
    stacked = {name: np.asarray([part[name] for part in parts], dtype=np.float64) for name in parts[0]}
    count = stacked.pop("count")[:, 0]
    weight = (count / count.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    mean = (weight * stacked["mean"]).sum(0)
    variance = (weight * (stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)).sum(0)
    merged = {"min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance)}
    merged |= {name: (weight * stacked[name]).sum(0) for name in QUANTILES}
    return {**{name: value.tolist() for name, value in merged.items()}, "count": [int(count.sum())]}
