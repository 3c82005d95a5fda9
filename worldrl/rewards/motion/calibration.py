"""Errors of an inverse dynamics, column by column in its own unit, and the coverage of its predicted deviations.

Shapes legend: ``E`` episodes, ``T_e`` frames of each, ``D`` columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl.core.types import Episode
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import Column, column_values
from worldrl.rewards.motion.training import LEAST_DEVIATION, Restore, as_shown

INTERVALS = {"0.5": 0.6745, "0.9": 1.6449, "0.95": 1.9600}
"""Nominal share of a Gaussian to its half width in deviations."""


@dataclass(frozen=True)
class Readings:
    """Decoded and recorded values of some episodes, float64 ``[T_e, D]`` each."""

    columns: tuple[Column, ...]
    true: list[NDArray[np.float64]]  # recorded values.
    mean: list[NDArray[np.float64]]  # decoded values.
    std: list[NDArray[np.float64]]  # predicted deviation of the decoded values.

    @property
    def errors(self) -> list[NDArray[np.float64]]:
        """Absolute errors ``[T_e, D]``."""
        return [np.abs(mean - true) for mean, true in zip(self.mean, self.true, strict=True)]

    @property
    def scores(self) -> list[NDArray[np.float64]]:
        """Errors over predicted deviations ``[T_e, D]``."""
        return [error / std for error, std in zip(self.errors, self.std, strict=True)]


def read_episodes(
    idm: InverseDynamics, episodes: Sequence[Episode], *, camera: str, restore: Restore | None = None
) -> Readings:
    """Read every ``frame_stride``-th frame of recorded episodes, through a codec if ``restore`` is given."""
    true, means, stds = [], [], []
    for episode in episodes:
        view = episode.frames[:: idm.frame_stride, episode.cameras.index(camera)]
        frames = torch.from_numpy(np.ascontiguousarray(view))
        decoded = idm.decode(as_shown(frames, restore)[None])
        values = column_values(episode, idm.columns, idm.frame_stride)[:: idm.frame_stride]
        kept = np.isfinite(values).all(axis=1)
        true.append(values[kept].astype(np.float64))
        means.append(decoded.mean[0].cpu().numpy()[kept].astype(np.float64))
        stds.append(decoded.std[0].cpu().numpy()[kept].astype(np.float64))
    return Readings(idm.columns, true, means, stds)


def calibration(readings: Readings, *, seed: int) -> list[dict[str, Any]]:
    """Measure every column on held-out episodes.

    Returns per column: ``column``, ``unit``, ``median`` and ``p90`` of the absolute error, ``coverage`` by nominal
    share, each with its interval over episodes, and ``guess``: the median error of the constant answer, the median.
    """
    return [
        {
            "column": column.label,
            "unit": column.unit,
            "median": over_episodes([e[:, d] for e in readings.errors], 0.5, seed=seed, name=column.label),
            "p90": over_episodes([e[:, d] for e in readings.errors], 0.9, seed=seed, name=column.label),
            "coverage": {
                share: _covered([z[:, d] for z in readings.scores], within, seed, column.label)
                for share, within in INTERVALS.items()
            },
            "guess": _guess(np.concatenate([true[:, d] for true in readings.true])),
        }
        for d, column in enumerate(readings.columns)
    ]


def by_unit(readings: Readings, *, seed: int) -> dict[str, dict[str, Bootstrap]]:
    """Median and 90th percentile of the absolute error over all columns of a unit that move in some episode."""
    units = dict.fromkeys(column.unit for column in readings.columns)
    moving = np.concatenate(readings.true).std(axis=0) > LEAST_DEVIATION
    found: dict[str, dict[str, Bootstrap]] = {}
    for unit in filter(None, units):
        chosen = [d for d, column in enumerate(readings.columns) if column.unit == unit and moving[d]]
        if not chosen:
            continue
        parts = [error[:, chosen].ravel() for error in readings.errors]
        found[unit] = {
            name: over_episodes(parts, share, seed=seed, name=unit) for name, share in (("median", 0.5), ("p90", 0.9))
        }
    return found


def over_episodes(parts: Sequence[NDArray[np.float64]], share: float, *, seed: int, name: str) -> Bootstrap:
    """Quantile of all values (the least that ``share`` of them do not exceed), with its interval over episodes."""
    values, owner = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]

    def quantile(drawn: NDArray[np.float64]) -> float:
        # An episode drawn twice counts twice: sorting once is several times faster than joining and sorting each draw.
        below = np.bincount(drawn.astype(np.int64), minlength=len(parts))[owner].cumsum()
        return float(values[np.searchsorted(below, share * below[-1])])

    return _bootstrap(quantile, len(parts), seed, name)


def _covered(parts: Sequence[NDArray[np.float64]], within: float, seed: int, name: str) -> Bootstrap:
    inside, size = (
        np.array(numbers) for numbers in zip(*((int((p <= within).sum()), len(p)) for p in parts), strict=True)
    )

    def share(drawn: NDArray[np.float64]) -> float:
        rows = drawn.astype(np.int64)
        return float(inside[rows].sum() / size[rows].sum())

    return _bootstrap(share, len(parts), seed, name)


def _bootstrap(statistic: Callable[[NDArray[np.float64]], float], episodes: int, seed: int, name: str) -> Bootstrap:
    """Resample whole episodes, by number: the frames of one are not independent."""
    rows = np.arange(episodes, dtype=np.float64)
    return bootstrap(rows, statistic, generator=numpy_stream(seed, "idm-calibration", name))


def _guess(true: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(true - np.median(true))))
