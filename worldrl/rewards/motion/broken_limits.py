"""Smooth penalty on motion that breaks, or nearly breaks, the bounds of position, velocity and acceleration.

The share of frames that break a bound has no slope, and in EVA's penalty jerk dominates. Here the excess is alone,
each as a share of its own bound, so that rad and rad/s² count alike::

    e_v = max(|v| / v_max - (1 - μ), 0)     e_a = max(|a| / a_max - (1 - μ), 0)
    e_q = (distance from [low + μ h, high - μ h]) / (v_max dt),  h = (high - low) / 2,  0 where a side has no bound
    R = -(Σ e_v² + Σ e_a² + Σ e_q²)

R sums over frames and coordinates: in a mean one broken bound would be small beside GDPO's ε. With μ = 0
(:func:`within_limits`) R is 0 exactly where no bound is broken, stillness included. With a margin μ
(:func:`clear_of_limits`) plans near a bound differ before they break it. Both rewards grow with slowness there.
"""

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
    """R of positions ``[N, T, D]``, ``[N]``; 0 within the bounds less the margin, and below four frames.

    ``margin`` μ in [0, 1) is the share of each bound (of a position: of half its range) at which the penalty begins.
    Raises SettingError: another margin, or limits of another number of coordinates.
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
