"""Whether a video model still moves after alignment, compared plan by plan with the same prompt and noise.

Alignment may remove a tenth of the motion (``rewards.motion.basis.REAL_SHARE``). For plan n with motion m_n before and m'_n after::

    d_n = m'_n - 0.9 m_n,     kept: the interval of mean d is above 0,     lost: below

Plans differ in motion by far more than alignment changes it, so separate intervals of two means would decide little.

Shapes legend: ``N`` plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np

from worldrl.core.errors import SettingError
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.rewards.motion.basis import REAL_SHARE

MotionVerdict = Literal["kept", "lost", "not decided"]


class MotionRatio(TypedDict):
    """Mean motion of ``n`` plans before and after, and ``value``, the mean of d, with its 95 % bootstrap interval over plans."""

    n: int
    before: float
    after: float
    share: float
    value: float
    lo: float
    hi: float
    verdict: MotionVerdict


def motion_ratio(before: Sequence[float], after: Sequence[float], *, generator: np.random.Generator) -> MotionRatio:
    """Verdict on the motion of plans ``[N]`` before and after, paired by prompt and noise; a single plan decides nothing.

    Raises SettingError (different numbers of plans, or none).
    """
    if len(before) != len(after):
        raise SettingError(f"motion: {len(before)} plans before and {len(after)} after; pair them by prompt first")
    was, now = np.asarray(before, np.float64), np.asarray(after, np.float64)
    found = bootstrap(now - REAL_SHARE * was, np.mean, generator=generator)
    verdict: MotionVerdict = "kept" if found["lo"] > 0 else "lost" if found["hi"] < 0 else "not decided"
    return {
        "n": found["n"],
        "before": float(was.mean()),
        "after": float(now.mean()),
        "share": REAL_SHARE,
        "value": found["value"],
        "lo": found["lo"],
        "hi": found["hi"],
        "verdict": verdict,
    }
