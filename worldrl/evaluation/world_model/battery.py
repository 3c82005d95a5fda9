"""The evaluation battery of a world model: from raw measures to named numbers with intervals.

``docs/reference/metrics.md`` defines every number. Rates have Wilson intervals, the Fréchet video distance a jackknife over episodes,
all others a bootstrap over episodes. ``not_computed`` holds a reason for each missing number.

Shapes legend: ``E`` episodes, ``F`` predicted frames, ``P`` points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, Statistic, bootstrap, bootstrap_band
from worldrl.core.statistics.intervals import wilson
from worldrl.evaluation.world_model.fvd import fvd_report
from worldrl.evaluation.world_model.grasp_rule import GraspRule
from worldrl.evaluation.world_model.measures import Measures
from worldrl.evaluation.world_model.rollout_error import decibels, f1_score, outcome_report
from worldrl.rewards.success import precision_recall

HORIZONS = (8, 32, 64, 128, 256)
"""Control steps at which the drift is reported."""
WITH_GRASP = ".with_grasp"
"""Suffix of the names of outcomes predicted from score and grasp."""


# --- statistics of some episodes ------------------------------------------------------------------------------------


def psnr_of_mean(error: NDArray[np.float64]) -> NDArray[np.float64]:
    """PSNR (dB) of the mean squared error over episodes: ``[E, ...]`` to ``[...]``."""
    return decibels(error.mean(axis=0))


def psnr_of_worst(error: NDArray[np.float64]) -> NDArray[np.float64]:
    """PSNR (dB) of the mean squared error over episodes, of the view where it is largest: ``[E, ..., W]`` to ``[...]``."""
    return decibels(error.mean(axis=0).max(axis=-1))


def median_of_points(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median over episodes and points without NaN: ``[E, ..., P]`` to ``[...]``; NaN where none is left."""
    # Not numpy.nanmedian, which is a hundred times slower.
    together = np.moveaxis(distance, 0, -2)
    flat = np.sort(together.reshape(*together.shape[:-2], -1), axis=-1)  # NaN comes last
    count = np.isfinite(flat).sum(axis=-1, keepdims=True)
    middle = [np.take_along_axis(flat, np.maximum(at, 0), axis=-1) for at in ((count - 1) // 2, count // 2)]
    return ((middle[0] + middle[1]) / 2)[..., 0]


def ratio_of_sums(pair: NDArray[np.float64]) -> float:
    """Sum of the first column over the sum of the second, ``[E, 2]``; infinite where only the second is 0."""
    over, under = pair.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(over / under)


# --- drift ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """One quantity ``[F]`` at every predicted frame (control steps ``step``), over ``n`` episodes, with its 95 % interval."""

    step: NDArray[np.int64]
    value: NDArray[np.float64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    n: int

    def at(self, horizon: int) -> Bootstrap:
        """Number at one horizon (control steps, a multiple of the frame stride)."""
        frame = int(np.flatnonzero(self.step == horizon)[0])
        value, lo, hi = (float(part[frame]) for part in (self.value, self.lo, self.hi))
        return {"n": self.n, "value": value, "lo": lo, "hi": hi, "method": "bootstrap"}

    def to_json(self) -> dict[str, list[float]]:
        """Plain JSON values."""
        return {name: getattr(self, name).tolist() for name in ("step", "value", "lo", "hi")}


QUANTITIES: Mapping[str, tuple[str, str, Statistic]] = {
    "psnr": ("closed_loop.psnr", "error", psnr_of_mean),
    "ssim": ("closed_loop.ssim", "ssim", partial(np.mean, axis=0)),
    "lpips": ("closed_loop.lpips", "lpips", partial(np.mean, axis=0)),
    "view_psnr": ("closed_loop.view_psnr", "view_error", psnr_of_worst),
    "state_cm": ("closed_loop.state_cm", "state_cm", partial(np.median, axis=0)),
    "state_deg": ("closed_loop.state_deg", "state_deg", partial(np.median, axis=0)),
    "state_error": ("closed_loop.state_error", "state_error", partial(np.median, axis=0)),
    "probe_error_cm": ("probe_error_cm", "probe_cm", median_of_points),
    "probe_error_cm_real": ("probe_error_cm_real", "real_cm", median_of_points),
    "probe_across_cm": ("probe_across_cm", "across_cm", median_of_points),
    "probe_across_cm_real": ("probe_across_cm_real", "real_across_cm", median_of_points),
    "views_apart_cm": ("views_apart_cm", "apart_cm", median_of_points),
    "views_apart_cm_real": ("views_apart_cm_real", "real_apart_cm", median_of_points),
}
"""Drift → name at the horizons, field of :class:`Measures`, statistic."""


def drifts(measures: Measures, *, frame_stride: int, seed: int) -> dict[str, Drift]:
    """Each measured quantity over the predicted frames."""
    step = frame_stride * (1 + np.arange(measures.error.shape[1]))
    found: dict[str, Drift] = {}
    for name, (_, source, statistic) in QUANTITIES.items():
        values: NDArray[np.float64] = getattr(measures, source)
        if 0 not in values.shape:
            found[name] = drift(name, values, statistic, step, seed=seed)
    return found


def drift(name: str, values: NDArray[np.float64], statistic: Statistic, step: NDArray[np.int64], *, seed: int) -> Drift:
    """A statistic of ``[E, F, ...]`` at every frame, with intervals over the episodes."""
    band = bootstrap_band(values, statistic, generator=numpy_stream(seed, "drift", name))
    return Drift(step, *band, len(values))


def check_horizons(horizons: Sequence[int], frame_stride: int) -> None:
    """Refuse horizons without a predicted frame; SettingError."""
    for horizon in horizons:
        if horizon < 1 or horizon % frame_stride:
            raise SettingError(
                f"horizons: must be multiples of the model's {frame_stride} control steps per frame, got {horizon}"
            )


# --- everything -----------------------------------------------------------------------------------------------------


def summarise(
    measures: Measures,
    drift: Mapping[str, Drift],
    horizons: Sequence[int],
    *,
    names: Sequence[str],
    seed: int,
    rule: GraspRule | None = None,
) -> dict[str, Any]:
    """Metrics by name, as in ``result.json``.

    ``names`` are the points that the probe reads, ``rule`` predicts outcomes from score and grasp together, under names of their own.
    """
    at_horizons = {
        f"{QUANTITIES[name][0]}@{horizon}": curve.at(horizon) for name, curve in drift.items() for horizon in horizons
    }
    static = bootstrap(measures.static, psnr_of_mean, generator=numpy_stream(seed, "static"))
    # A single episode has no other's actions.
    pairs = measures.swapped if len(measures) > 1 else np.full_like(measures.swapped, np.nan)
    swap = bootstrap(pairs, ratio_of_sums, generator=numpy_stream(seed, "swap"))
    together: dict[str, Any] = {}
    if rule is not None:
        counts = rule.counts(measures.score, measures.agreement)
        numbers = outcome_numbers(counts, measures.actual, seed=seed)
        together = {f"{name}{WITH_GRASP}": number for name, number in numbers.items()}
    return {
        "episodes": len(measures),
        **at_horizons,
        **probe_numbers(measures, names, seed=seed),
        **({} if 0 in measures.real_clips.shape else {"fvd": fvd_report(measures.real_clips, measures.imagined_clips)}),
        "action_swap_ratio": swap,
        "static_psnr": static,
        **outcome_numbers(measures.predicted, measures.actual, seed=seed),
        **together,
        "tasks": {
            str(task): task_numbers(measures.select(measures.task == task), seed=seed)
            for task in np.unique(measures.task)
        },
        "repeated": wilson(int(measures.repeated.sum()), len(measures)),
        "recorded": {str(horizon): int((measures.recorded >= horizon).sum()) for horizon in horizons},
        "drift": {name: curve.to_json() for name, curve in drift.items()},
    }


def outcome_numbers(predicted: NDArray[np.bool_], actual: NDArray[np.bool_], *, seed: int) -> dict[str, Any]:
    """Rates, F1 and counts of imagined against real outcomes; None where nothing can be counted."""
    pairs = np.stack([predicted, actual], axis=1).astype(np.float64)
    f1 = bootstrap(pairs, f1_score, generator=numpy_stream(seed, "f1")) if pairs.any() else None
    return {**outcome_report(predicted, actual), "f1": f1, "confusion": precision_recall(predicted, actual)}


def probe_numbers(measures: Measures, names: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The probe's own error on real frames of the evaluated episodes, over all points and point by point."""
    if 0 in measures.real_cm.shape:
        return {}
    own = {"probe_error_cm@real": measures.real_cm, "probe_across_cm@real": measures.real_across_cm}
    parts = {
        "imagined": measures.probe_cm,
        "imagined_across": measures.across_cm,
        "real": measures.real_cm,
        "real_across": measures.real_across_cm,
    }
    points = {
        name: {where: float(_median_of_frames(values[:, :, [number]])) for where, values in parts.items()}
        for number, name in enumerate(names)
    }
    return {
        **{key: bootstrap(values, _median_of_frames, generator=numpy_stream(seed, key)) for key, values in own.items()},
        "probe_error_cm_by_point": points,
    }


def _median_of_frames(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median over episodes, frames and points, ``[E, F, P]``."""
    return median_of_points(distance.reshape(len(distance), -1))


def task_numbers(measures: Measures, *, seed: int) -> dict[str, Any]:
    """Outcomes of one task, and its pixel error over recorded and continued frames."""
    return {
        "episodes": len(measures),
        "psnr": float(psnr_of_mean(measures.error.mean(axis=1))),
        **outcome_numbers(measures.predicted, measures.actual, seed=seed),
    }
