"""How far a decoded motion breaks the bounds of position, velocity and acceleration, smoothly: something to climb.

The share of frames that break a bound (:func:`~worldrl.rewards.executability.violation_rate`) has no slope. EVA's penalty holds
the excess too, but beside its jerk, which makes up nearly all of it, so climbing EVA's reward may break more bounds than before.
Here the excess stands alone, each as a share of its own bound, so that radians and radians per second squared count alike::

    e_v = max(|v| / v_max - 1, 0)     e_a = max(|a| / a_max - 1, 0)     e_q = (distance from [low, high]) / (v_max dt)
    R = -(Σ e_v² + Σ e_a² + Σ e_q²)

Sums over frames and coordinates: of means, one broken bound in a plan would be too small to stand out beside GDPO's ε. R is 0
exactly where no bound is broken, so it tells plans within their bounds from each other by nothing, stillness included.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldrl.rewards.executability import LEAST_FRAMES, beyond, derivatives
from worldrl.rewards.limits import JointLimits

WITHIN = "within_limits"


def within_limits(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """R of whole videos.

    Args:
        q: decoded positions ``[N, T, D]``.
        dt: seconds between frames.
        limits: bounds of the ``D`` coordinates.

    Returns:
        ``[N]``, 0 where every bound is kept, and for fewer than four frames.
    """
    if q.shape[1] < LEAST_FRAMES:
        return q.new_zeros(len(q))
    velocity, acceleration, _ = derivatives(q, dt)
    v_max, a_max = limits.tensor("velocity", q), limits.tensor("acceleration", q)
    excess = (
        (velocity.abs() / v_max - 1).clamp_min(0),
        (acceleration.abs() / a_max - 1).clamp_min(0),
        beyond(q, limits) / (v_max * dt),
    )
    return -torch.stack([e.square().sum(dim=(1, 2)) for e in excess]).sum(dim=0)
