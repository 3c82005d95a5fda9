"""From success probabilities to an outcome: threshold, debounce and calibration.

Reinforcement learning exploits false positives, so one frame above the threshold is not enough: success needs
``debounce`` consecutive frames. The count continues over chunk borders.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import wilson


@dataclass(frozen=True)
class SuccessRule:
    """Success needs ``debounce`` (at least 1) consecutive frames of at least ``threshold``, in (0, 1)."""

    threshold: float
    debounce: int

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise SettingError(f"outcome.threshold must be in (0, 1), got {self.threshold}")
        if self.debounce < 1:
            raise SettingError(f"outcome.debounce must be at least 1, got {self.debounce}")

    @classmethod
    def of(cls, calibrated: Any) -> "SuccessRule":
        """Take the numbers of a calibrated world model's ``config.outcome``."""
        return cls(calibrated.threshold, calibrated.debounce)


def first_success(probability: Tensor, rule: SuccessRule, streak: Tensor) -> tuple[Tensor, Tensor]:
    """First frame of ``probability`` ``[B, T]`` with a streak long enough ``[B]``, -1 for none; and the streak."""
    first = torch.full_like(streak, -1)
    for t in range(probability.shape[1]):
        streak = torch.where(probability[:, t] >= rule.threshold, streak + 1, 0)
        first = torch.where((first < 0) & (streak >= rule.debounce), t, first)
    return first, streak


def success_step(probability: Tensor, rule: SuccessRule, frame_stride: int) -> NDArray[np.int64]:
    """Control step of each rollout's first success ``[B]``, -1 for none; column 0 is the first imagined frame."""
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
    """Largest threshold at which each rollout counts as success, ``[B]``: max_t min_{0 <= k < debounce} p_{t+k}.

    0 for rollouts of fewer frames than ``debounce``.
    """
    if probability.shape[1] < debounce:
        return np.zeros(len(probability), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(probability, debounce, axis=1)
    return windows.min(axis=-1).max(axis=-1)


HIGHEST_THRESHOLD = 0.999
"""Calibration goes no higher. A head that gives failures more than this needs training, not a higher threshold."""


def calibrate_threshold(
    score: NDArray[np.float32], actual: NDArray[np.bool_], *, target_precision: float, default: float
) -> float:
    """Choose the lowest threshold, of at least ``default``, that reaches the target precision on ``[B]`` rollouts.

    If none does, take that with the largest lower end of its precision's Wilson interval; the highest would often
    leave no positive sample. :data:`HIGHEST_THRESHOLD` if no candidate rollout succeeded.
    """
    score = np.clip(score, 0, HIGHEST_THRESHOLD)
    candidates = [float(t) for t in np.unique(np.clip(score, default, None)) if (score >= t).any()]
    precision = {t: wilson(int(actual[score >= t].sum()), int((score >= t).sum())) for t in candidates}
    good = [t for t, rate in precision.items() if rate["rate"] >= target_precision]
    if good or not candidates:
        return min(good, default=default)
    surest = max(candidates, key=lambda t: precision[t]["lo"])
    return surest if precision[surest]["k"] else HIGHEST_THRESHOLD
