"""From success probabilities to an outcome: threshold, debounce and calibration.

Reinforcement learning climbs false successes, so a single frame over the threshold is not believed: ``debounce``
consecutive frames are, and the count runs on over chunk borders.

Shapes legend: ``B`` rows, ``T`` frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import wilson


@dataclass(frozen=True)
class SuccessRule:
    """When imagined frames count as success.

    Attributes:
        threshold: least probability, in (0, 1).
        debounce: consecutive frames at or over it, at least 1.
    """

    threshold: float
    debounce: int

    def __post_init__(self) -> None:
        """Reject a rule that would accept everything or nothing."""
        if not 0 < self.threshold < 1:
            raise SettingError(f"outcome.threshold must be in (0, 1), got {self.threshold}")
        if self.debounce < 1:
            raise SettingError(f"outcome.debounce must be at least 1, got {self.debounce}")


def first_success(probability: Tensor, rule: SuccessRule, streak: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first frame at which the streak is long enough.

    Args:
        probability: ``[B, T]``.
        rule: threshold and debounce.
        streak: int64 ``[B]``, consecutive positive frames just before.

    Returns:
        Index of the first success ``[B]`` (-1 where there is none) and the streak after the last frame ``[B]``.
    """
    first = torch.full_like(streak, -1)
    for t in range(probability.shape[1]):
        streak = torch.where(probability[:, t] >= rule.threshold, streak + 1, 0)
        first = torch.where((first < 0) & (streak >= rule.debounce), t, first)
    return first, streak


def success_step(probability: Tensor, rule: SuccessRule, frame_stride: int) -> NDArray[np.int64]:
    """Control step of each rollout's first imagined success ``[B]``, -1 where there is none.

    Args:
        probability: ``[B, T]``, from the first imagined frame on.
        rule: threshold and debounce.
        frame_stride: control steps between imagined frames.
    """
    first, _ = first_success(probability, rule, torch.zeros(len(probability), dtype=torch.int64))
    return np.where(first.numpy() >= 0, (first.numpy() + 1) * frame_stride, -1)


def precision_recall(predicted: NDArray[np.bool_], actual: NDArray[np.bool_]) -> dict[str, int]:
    """Count ``tp, fp, fn, tn`` of predicted against actual outcomes."""
    return {
        "tp": int((predicted & actual).sum()),
        "fp": int((predicted & ~actual).sum()),
        "fn": int((~predicted & actual).sum()),
        "tn": int((~predicted & ~actual).sum()),
    }


def debounced_score(probability: NDArray[np.float32], debounce: int) -> NDArray[np.float32]:
    """Largest threshold under which each rollout still counts as success: max_t min_{0 <= k < m} p_{t+k}, m = ``debounce``.

    Args:
        probability: ``[B, T]``.
        debounce: consecutive frames.

    Returns:
        ``[B]``: the maximum over time of the minimum over ``debounce`` consecutive frames.
    """
    windows = np.lib.stride_tricks.sliding_window_view(probability, debounce, axis=1)
    return windows.min(axis=-1).max(axis=-1)


HIGHEST_THRESHOLD = 0.999
"""Calibration goes no higher: a head that is sure of failures too must be trained, not asked for more nines."""


def calibrate_threshold(
    score: NDArray[np.float32], actual: NDArray[np.bool_], *, target_precision: float, default: float
) -> float:
    """Choose the lowest threshold that reaches the target precision on calibration rollouts.

    Where none does, the one whose precision is surest to be high: the largest lower end of its Wilson interval. The
    highest threshold of all would often leave nothing to learn from.

    Args:
        score: ``[B]`` from :func:`debounced_score`.
        actual: ``[B]`` real outcomes of the same action sequences.
        target_precision: least share of predicted successes that are real.
        default: returned when no rollout scores this much; never lower than this either, so that a handful of
            easy rollouts cannot open the gate.

    Returns:
        A threshold in (0, 1); :data:`HIGHEST_THRESHOLD` where nothing really succeeded: imagined successes that are all
        false must not lead to the loosest threshold.
    """
    score = np.clip(score, 0, HIGHEST_THRESHOLD)
    candidates = [float(t) for t in np.unique(np.clip(score, default, None)) if (score >= t).any()]
    precision = {t: wilson(int(actual[score >= t].sum()), int((score >= t).sum())) for t in candidates}
    good = [t for t, rate in precision.items() if rate["rate"] >= target_precision]
    if good or not candidates:
        return min(good, default=default)
    surest = max(candidates, key=lambda t: precision[t]["lo"])
    return surest if precision[surest]["k"] else HIGHEST_THRESHOLD
