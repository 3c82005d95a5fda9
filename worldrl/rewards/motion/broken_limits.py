"""How far a decoded motion breaks, or nearly breaks, the bounds of position, velocity and acceleration, smoothly: something to climb.

The share of frames that break a bound (:func:`~worldrl.rewards.motion.executability.violation_rate`) has no slope. EVA's penalty holds
the excess too, but beside its jerk, which makes up nearly all of it, so climbing EVA's reward may break more bounds than before.
Here the excess stands alone, each as a share of its own bound, so that radians and radians per second squared count alike::

    e_v = max(|v| / v_max - (1 - μ), 0)     e_a = max(|a| / a_max - (1 - μ), 0)
    e_q = (distance from [low + μ h, high - μ h]) / (v_max dt),  h = (high - low) / 2,  0 where a side has no bound
    R = -(Σ e_v² + Σ e_a² + Σ e_q²)

Sums over frames and coordinates: of means, one broken bound in a plan would be too small to stand out beside GDPO's ε. R with μ = 0
(:func:`within_limits`) is 0 exactly where no bound is broken, so it tells plans within their bounds from each other by nothing,
stillness included; and where nearly all plans are, a group has nothing to learn from it. With a margin μ
(:func:`clear_of_limits`) the hinge begins inside the bounds, and plans that come near one differ before they break it. Both rewards
grow with slowness there, the second on real motion too where μ is larger than the room that the bounds leave it.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.rewards.motion.executability import LEAST_FRAMES, beyond, derivatives
from worldrl.rewards.motion.limits import JointLimits

WITHIN, CLEAR = "within_limits", "clear_of_limits"


def within_limits(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """R of whole videos with μ = 0, ``[N]``; arguments and errors as :func:`clear_of_limits`."""
    return clear_of_limits(q, dt, limits, margin=0.0)


def clear_of_limits(q: Tensor, dt: float, limits: JointLimits, *, margin: float) -> Tensor:
    """R of whole videos.

    Args:
        q: decoded positions ``[N, T, D]``.
        dt: seconds between frames.
        limits: bounds of the ``D`` coordinates.
        margin: μ, share of each bound (of a position: of half its range) from which on the penalty begins, in [0, 1).

    Returns:
        ``[N]``, 0 where everything keeps within its bounds less the margin, and for fewer than four frames.

    Raises:
        SettingError: the margin lies elsewhere, or the limits are of another number of coordinates.
    """
    if not 0 <= margin < 1:
        raise SettingError(f"clear_of_limits: margin must be in [0, 1), got {margin}")
    if q.shape[1] < LEAST_FRAMES:
        return q.new_zeros(len(q))
    velocity, acceleration, _ = derivatives(q, dt)
    v_max, a_max = limits.tensor("velocity", q), limits.tensor("acceleration", q)
    excess = (
        (velocity.abs() / v_max - (1 - margin)).clamp_min(0),
        (acceleration.abs() / a_max - (1 - margin)).clamp_min(0),
        beyond(q, limits.drawn_in(margin)) / (v_max * dt),
    )
    return -torch.stack([e.square().sum(dim=(1, 2)) for e in excess]).sum(dim=0)
