"""EVA's executability reward on trajectories that inverse dynamics decoded from a video (arXiv 2603.17808).

As its code computes it. With v, a, j the first three differences of the positions q over dt, H_δ Huber's function and
w the coordinates' weights of mean 1::

    P_acc  = mean w H_{a_max/2}(a)              P_jerk = mean w H_{a_max/(2 dt)}(j)
    P_vlim = mean w max(|v| - v_max, 0)²        P_alim = mean w max(|a| - a_max, 0)²
    P = 0.5 P_jerk + 0.25 P_acc + 2 P_vlim + P_alim
    R = 10 (1 + P/P0)^(-1/2),  0 for fewer than four frames

P_pos = mean w (max(low - q, 0) + max(q - high, 0))² is an addition, with weight 0 in the published constants. P0 =
2000 is published; :func:`refit` sets it to the noise floor of the inverse dynamics in use. A still video scores the
full 10, so this reward needs a motion term beside it (``rewards.motion.moving``).

Shapes legend of all rewards on motion: ``N`` videos, ``T`` frames, ``D`` coordinates or columns.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.rewards.motion.limits import JointLimits

LEAST_FRAMES = 4  # a jerk needs four positions


@dataclass(frozen=True)
class Constants:
    """Weights of the terms, and the map from penalty to reward."""

    jerk: float = 0.5
    acceleration: float = 0.25
    velocity_bound: float = 2.0
    acceleration_bound: float = 1.0
    position_bound: float = 0.0  # 0 as published.
    huber: float = 0.5  # point where the Huber functions turn linear, as a share of the bound.
    p0: float = 2000.0  # penalty whose reward is ``highest`` / √2.
    gamma: float = 0.5  # exponent of the map.
    highest: float = 10.0  # reward of no penalty.


PUBLISHED = Constants()
TERMS = ("jerk", "acceleration", "velocity_bound", "acceleration_bound", "position_bound")


def huber(x: Tensor, delta: Tensor) -> Tensor:
    """H_δ(x): x²/2 up to δ, δ(|x| - δ/2) beyond."""
    size = x.abs()
    return torch.where(size <= delta, 0.5 * x.square(), delta * (size - 0.5 * delta))


def derivatives(q: Tensor, dt: float) -> tuple[Tensor, Tensor, Tensor]:
    """Velocity ``[N, T-1, D]``, acceleration ``[N, T-2, D]`` and jerk ``[N, T-3, D]``."""
    velocity = q.diff(dim=1) / dt
    acceleration = velocity.diff(dim=1) / dt
    return velocity, acceleration, acceleration.diff(dim=1) / dt


def beyond(q: Tensor, limits: JointLimits) -> Tensor:
    """Distance of each position ``[..., D]`` outside its limits."""
    return (limits.tensor("low", q) - q).clamp_min(0) + (q - limits.tensor("high", q)).clamp_min(0)


def penalty_terms(q: Tensor, dt: float, limits: JointLimits, constants: Constants = PUBLISHED) -> dict[str, Tensor]:
    """Every term of :data:`TERMS` for positions ``[N, T, D]``, averaged over the coordinates: ``[N, T_k]`` each.

    T_k = T - 3 (jerk), T - 2 (accelerations), T - 1 (velocity) or T (position). Raises SettingError: limits of
    another size, or fewer than :data:`LEAST_FRAMES` frames.
    """
    if q.shape[1] < LEAST_FRAMES:
        raise SettingError(f"penalty_terms needs at least {LEAST_FRAMES} frames, got {q.shape[1]}")
    velocity, acceleration, jerk = derivatives(q, dt)
    v_max, a_max = limits.tensor("velocity", q), limits.tensor("acceleration", q)
    terms = {
        "jerk": huber(jerk, constants.huber * a_max / dt),
        "acceleration": huber(acceleration, constants.huber * a_max),
        "velocity_bound": (velocity.abs() - v_max).clamp_min(0).square(),
        "acceleration_bound": (acceleration.abs() - a_max).clamp_min(0).square(),
        "position_bound": beyond(q, limits).square(),
    }
    return {name: (limits.shares(q) * term).mean(dim=-1) for name, term in terms.items()}


def penalty(q: Tensor, dt: float, limits: JointLimits, constants: Constants = PUBLISHED) -> Tensor:
    """P of whole videos, ``[N]``."""
    terms = penalty_terms(q, dt, limits, constants)
    return torch.stack([getattr(constants, name) * term.mean(dim=1) for name, term in terms.items()]).sum(dim=0)


def bounded(p: Tensor, constants: Constants = PUBLISHED) -> Tensor:
    """R = highest (1 + P/P0)^-γ."""
    return constants.highest * (1 + p / constants.p0).pow(-constants.gamma)


def executability(q: Tensor, dt: float, limits: JointLimits, *, constants: Constants = PUBLISHED) -> Tensor:
    """EVA's reward of decoded positions ``[N, T, D]``: ``[N]`` in [0, ``constants.highest``], 0 below four frames."""
    if q.shape[1] < LEAST_FRAMES:
        return q.new_zeros(len(q))
    return bounded(penalty(q, dt, limits, constants), constants)


def refit(real: Tensor, dt: float, limits: JointLimits) -> Constants:
    """Set P0 to the noise floor: the median penalty of real videos' decodes ``[N, T, D]``; its reward is 10 / √2.

    With the published P0 a decode's own noise of 0.02 rad costs as much as a teleport by half a radian.
    """
    return replace(PUBLISHED, p0=float(penalty(real, dt, limits, PUBLISHED).median()))


def position_limits(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """-P_pos, ``[N]``: 0 if every position is within its limits; ``dt`` is ignored."""
    return -(limits.shares(q) * beyond(q, limits).square()).mean(dim=-1).mean(dim=1)


# --- artefacts, counted ---------------------------------------------------------------------------------------------


def violation_rate(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """Share of the frames with a coordinate outside a bound of position, velocity or acceleration, ``[N]``."""
    velocity, acceleration, _ = derivatives(q, dt)
    broken = ((q < limits.tensor("low", q)) | (q > limits.tensor("high", q))).any(dim=-1)
    broken[:, 1:] |= (velocity.abs() > limits.tensor("velocity", q)).any(dim=-1)
    broken[:, 2:] |= (acceleration.abs() > limits.tensor("acceleration", q)).any(dim=-1)
    return broken.to(q.dtype).mean(dim=1)


def jerk_spike_rate(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """Share of the steps with a coordinate whose jerk exceeds its acceleration bound within one frame, ``[N]``."""
    spikes = derivatives(q, dt)[2].abs() > limits.tensor("acceleration", q) / dt
    return spikes.any(dim=-1).to(q.dtype).mean(dim=1)
