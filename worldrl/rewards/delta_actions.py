"""EVA's reward for actions that are changes themselves: LIBERO's 7 numbers, Δposition, Δrotation and gripper.

A change is a velocity already, so differences start one order lower: v := action, a := its difference, j := its second
difference, all in action units per control step. Bounds follow from the arm's accelerations (Panda: 13 m/s², 25 rad/s²)::

    a_max = acceleration · dt² / scale        0.05 m and 0.5 rad at 20 Hz: 0.65 and 0.125

    P = mean max(|a| - a_max, 0)² + max(flips - 1, 0) + 0.1 mean H_{a_max/2}(a) + 0.05 mean H_{a_max}(j)
    R = 10 (1 + P)^(-1/2)

with flips the number of times the gripper changes its sign. The action executed before is put in front, so that the
seam between two chunks counts.

Shapes legend: ``N`` chunks, ``L`` control steps, 7 numbers of an action.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldrl.core.embodiment import Embodiment
from worldrl.rewards.executability import huber

LINEAR, ANGULAR = 13.0, 25.0
"""Panda's largest acceleration of the hand: m/s² and rad/s²."""
BOUND, FLIP, ACCELERATION, JERK = 1.0, 1.0, 0.1, 0.05
"""Weights of the terms."""
HIGHEST = 10.0


def acceleration_bounds(position_scale: float, rotation_scale: float, hz: float) -> tuple[float, ...]:
    """a_max of the six motion numbers, in action units per control step.

    Args:
        position_scale: metres of Δposition at action 1.
        rotation_scale: radians of Δrotation at action 1.
        hz: control steps per second.
    """
    return 3 * (LINEAR / hz**2 / position_scale,) + 3 * (ANGULAR / hz**2 / rotation_scale,)


def bounds_of(embodiment: Embodiment) -> tuple[float, ...]:
    """:func:`acceleration_bounds` of a recorded robot."""
    return acceleration_bounds(embodiment.position_scale, embodiment.rotation_scale, embodiment.control_hz)


def gripper_flips(action: Tensor) -> Tensor:
    """How often the gripper changes its sign, ``[N]``; 0 opens."""
    closed = action[..., 6] > 0
    return (closed[:, 1:] != closed[:, :-1]).sum(dim=1).to(action.dtype)


def delta_penalty(action: Tensor, bounds: tuple[float, ...], previous: Tensor | None = None) -> Tensor:
    """P of chunks of actions.

    Args:
        action: ``[N, L, 7]``, as the robot executes them.
        bounds: a_max of the six motion numbers.
        previous: the action executed before each chunk ``[N, 7]``; None where there is none.

    Returns:
        ``[N]``.
    """
    whole = action if previous is None else torch.cat([previous[:, None], action], dim=1)
    a_max = action.new_tensor(bounds)
    acceleration = whole[..., :6].diff(dim=1)  # [N, L-1 or L, 6]
    beyond = (acceleration.abs() - a_max).clamp_min(0).square()
    return (
        BOUND * _mean(beyond)
        + FLIP * (gripper_flips(whole) - 1).clamp_min(0)
        + ACCELERATION * _mean(huber(acceleration, 0.5 * a_max))
        + JERK * _mean(huber(acceleration.diff(dim=1), a_max))
    )


def delta_executability(action: Tensor, bounds: tuple[float, ...], previous: Tensor | None = None) -> Tensor:
    """R = 10 (1 + P)^(-1/2), ``[N]``; arguments as :func:`delta_penalty`."""
    return HIGHEST * (1 + delta_penalty(action, bounds, previous)).pow(-0.5)


def _mean(term: Tensor) -> Tensor:
    """Mean over steps and numbers ``[N]``; 0 where there is no step."""
    return term.flatten(1).sum(dim=1) / max(term[0].numel(), 1)
