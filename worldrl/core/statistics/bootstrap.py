"""Intervals for statistics that have no formula of their own: PSNR of a mean error, a ratio of means, a median.

Percentile bootstrap: B. Efron, Annals of Statistics 7 (1979). Whole episodes are drawn again, since the frames of one
episode are not independent. With few episodes the interval is too narrow: of means of 8 values it holds the truth in
about 89 % of cases instead of 95 % (measured in ``tests/core/test_bootstrap.py``).

Jackknife: J. W. Tukey, Annals of Mathematical Statistics 29 (1958); for smooth statistics that grow when an episode is
drawn twice, as distances between sets do.

Shapes legend: ``E`` episodes, ``S`` seeds, ``K`` tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import Z

RESAMPLES = 1000

Statistic = Callable[[NDArray[np.float64]], Any]
"""Maps ``[E, ...]`` to a number or to an array without the first axis."""


class Bootstrap(TypedDict):
    """A statistic of ``n`` episodes with its 95 % bootstrap interval; NaN ends where there is one episode only."""

    n: int
    value: float
    lo: float
    hi: float
    method: Literal["bootstrap"]


def bootstrap(
    values: NDArray[np.float64],
    statistic: Statistic,
    *,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Bootstrap:
    """Return a scalar statistic with its interval; arguments and errors as :func:`bootstrap_band`."""
    value, lo, hi = bootstrap_band(values, statistic, generator=generator, resamples=resamples)
    return {"n": len(values), "value": float(value), "lo": float(lo), "hi": float(hi), "method": "bootstrap"}


def bootstrap_band(
    values: NDArray[np.float64],
    statistic: Statistic,
    *,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return a statistic and the ends of its 95 % interval, for every further axis it keeps.

    Args:
        values: ``[E, ...]``, one entry per episode; infinite ones are allowed.
        statistic: of some episodes.
        generator: of the resampling.
        resamples: how often ``E`` episodes are drawn with replacement.

    Returns:
        The statistic of all episodes, the lower end and the upper end; both ends NaN for a single episode.

    Raises:
        SettingError: no episode, or no resample.
    """
    if len(values) < 1 or resamples < 1:
        raise SettingError(f"bootstrap: needs an episode and a resample, got {len(values)} and {resamples}")
    value = np.asarray(statistic(values), np.float64)
    if len(values) == 1:
        unknown = np.full_like(value, np.nan)
        return value, unknown, unknown.copy()
    draws = generator.integers(len(values), size=(resamples, len(values)))
    redrawn: NDArray[np.float64] = np.stack([np.asarray(statistic(values[row]), np.float64) for row in draws])
    # Without interpolation, so that infinite values stay what they are.
    lo, hi = np.quantile(redrawn, [0.025, 0.975], axis=0, method="inverted_cdf")
    return value, np.asarray(lo), np.asarray(hi)


class Jackknife(TypedDict):
    """A statistic of ``n`` episodes with its 95 % jackknife interval; NaN ends for fewer than three episodes."""

    n: int
    value: float
    lo: float
    hi: float
    method: Literal["jackknife"]


def jackknife(values: NDArray[np.float32], statistic: Callable[[NDArray[np.float32]], float]) -> Jackknife:
    """Return a smooth statistic with the normal interval of its jackknife deviation: each episode is left out once.

    Args:
        values: ``[E, ...]``, one entry per episode.
        statistic: of some episodes, a number.

    Raises:
        SettingError: no episode.
    """
    count = len(values)
    if count < 1:
        raise SettingError("jackknife: needs an episode, got none")
    value, half = float(statistic(values)), float("nan")
    if count > 2:
        without = np.array([float(statistic(np.delete(values, row, axis=0))) for row in range(count)])
        half = Z * float(np.sqrt((count - 1) * np.var(without)))
    return {"n": count, "value": value, "lo": value - half, "hi": value + half, "method": "jackknife"}


def stratified_bootstrap(
    values: NDArray[np.float64],
    statistic: Statistic,
    *,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Bootstrap:
    """Return a statistic of runs on several tasks with its 95 % interval: runs are drawn again within each task.

    R. Agarwal et al., Deep RL at the Edge of the Statistical Precipice, NeurIPS 2021, section 4.1.

    Args:
        values: ``[R, K]``, one score per run (seed) and task.
        statistic: of scores ``[R, K]``, a number; see :func:`interquartile_mean`.
        generator: of the resampling.
        resamples: how often ``R`` runs are drawn with replacement in each task.

    Returns:
        ``n`` is the number of runs ``R``; both ends are NaN for a single run.

    Raises:
        SettingError: not two axes, no run, no task, or no resample.
    """
    if values.ndim != 2 or values.size == 0 or resamples < 1:
        raise SettingError(f"bootstrap: needs scores [runs, tasks] and a resample, got {list(values.shape)}")
    runs, tasks = values.shape
    value = float(statistic(values))
    lo = hi = float("nan")
    if runs > 1:
        draws = generator.integers(runs, size=(resamples, runs, tasks))
        redrawn: NDArray[np.float64] = np.array([float(statistic(values[d, np.arange(tasks)])) for d in draws])
        lo, hi = (float(end) for end in np.quantile(redrawn, [0.025, 0.975], method="inverted_cdf"))
    return {"n": runs, "value": value, "lo": lo, "hi": hi, "method": "bootstrap"}


def suite_score(success: NDArray[np.bool_], *, generator: np.random.Generator, resamples: int = RESAMPLES) -> Bootstrap:
    """Return the mean over tasks of the success rates, with its 95 % interval over seeds and episodes.

    Seeds are drawn again, and within each drawn seed the episodes of each task. One pseudo-episode of each outcome,
    spread over the tasks, smooths it, as in :func:`worldrl.core.statistics.intervals.stratified_paired`: without, a suite that is
    solved throughout would have an interval of no width.

    Args:
        success: bool ``[S, E, K]``: training seeds, episodes of each task, tasks; ``S`` may be 1, and the interval is
            then about these weights alone.
        generator: of the resampling.
        resamples: how often.

    Returns:
        ``n`` is the number of episodes of all seeds and tasks.

    Raises:
        SettingError: not three axes, or nothing in one of them.
    """
    if success.ndim != 3 or success.size == 0 or resamples < 1:
        raise SettingError(f"suite_score: needs success [seeds, episodes, tasks], got {list(success.shape)}")
    seeds, episodes, tasks = success.shape
    smooth = (success.sum(axis=1) + 1 / tasks) / (episodes + 2 / tasks)  # [S, K]
    drawn = generator.integers(seeds, size=(resamples, seeds))
    binomial: Any = generator.binomial  # numpy's types do not follow
    counts: NDArray[np.float64] = np.asarray(binomial(episodes, smooth[drawn]), np.float64)
    rates: NDArray[np.float64] = np.mean(counts, axis=(1, 2)) / episodes
    value = float(success.mean())
    lo, hi = (float(end) for end in np.quantile(rates, [0.025, 0.975]))
    return {"n": success.size, "value": value, "lo": min(lo, value), "hi": max(hi, value), "method": "bootstrap"}


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the middle half of all values: the lowest and highest quarters, rounded down, are left out.

    Fewer than four values have no quarters to leave out, and give the mean.
    """
    ordered: NDArray[np.float64] = np.sort(values, axis=None)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))
