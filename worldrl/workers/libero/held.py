"""A goal that LIBERO's controller keeps: actions move the goal, and the hand follows it (suites ``…@held``).

LIBERO counts each action from the measured pose, so nothing says exactly where a sequence of actions leads. Here the
goal follows from the actions alone, and each step sends the controller what is left to it. Imagination then knows the
command as well as the simulator does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero import facts
from worldrl.workers.libero.observation import POSITION, QUATERNION
from worldrl.workers.link.rotations import DOWN, quaternion, rotation_matrix, rotation_vector

Vector = NDArray[np.float64]


class HeldGoal:
    """The goal of the hand, at first its measured pose."""

    def __init__(self, obs: Mapping[str, Any]) -> None:
        self._position, self._turned = _pose(obs)

    def move(self, action: Vector) -> None:
        """Add an action's motion; rotations compose from the left."""
        self._position = self._position + facts.HELD_POSITION_SCALE * np.clip(action[:3], -1, 1)
        turn = rotation_matrix(quaternion(facts.HELD_ROTATION_SCALE * np.clip(action[3:6], -1, 1)))
        self._turned = turn @ self._turned

    def left(self, obs: Mapping[str, Any], gripper: float) -> Vector:
        """Return LIBERO's own action ``[7]`` from the measured pose to the goal."""
        position, turned = _pose(obs)
        way = (self._position - position) / facts.POSITION_SCALE
        turn = rotation_vector(self._turned @ turned.T) / facts.ROTATION_SCALE
        return np.clip(np.array([*way, *turn, gripper]), -1, 1)

    def towards(self, action: NDArray[np.float32], obs: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the action ``[7]`` that moves the goal to where an action of LIBERO's own would send the hand."""
        position, turned = _pose(obs)
        way = position + facts.POSITION_SCALE * action[:3] - self._position
        wanted = rotation_matrix(quaternion(facts.ROTATION_SCALE * action[3:6].astype(np.float64))) @ turned
        turn = rotation_vector(wanted @ self._turned.T)
        moved = np.array([*(way / facts.HELD_POSITION_SCALE), *(turn / facts.HELD_ROTATION_SCALE)])
        return np.append(np.clip(moved, -1, 1), action[6]).astype(np.float32)

    def command(self, gripper: float) -> NDArray[np.float32]:
        """Return the commanded pose and gripper, float32 ``[7]``; the rotation counts from straight down."""
        return np.concatenate([self._position, rotation_vector(self._turned @ DOWN.T), [gripper]]).astype(np.float32)


def _pose(obs: Mapping[str, Any]) -> tuple[Vector, Vector]:
    return np.array(obs[POSITION], np.float64), rotation_matrix(np.asarray(obs[QUATERNION], np.float64))
