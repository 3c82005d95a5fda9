"""LIBERO's observations as published policies see them: pictures, the 8-number state and the commanded pose.

The only place where a picture is turned and a state is put together; the numbers are in ``workers/libero_facts.py``.
What is recorded, what a policy is shown and what is compared with demonstrations all come through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

POSITION, QUATERNION, FINGERS = "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"
OBSERVED = (POSITION, QUATERNION, FINGERS)
"""What is read of robosuite's observation. It computes some thirty quantities, each looked at in every physics step; the
worker switches the others off."""
DOWN = np.diag([1.0, -1.0, -1.0])
"""Rotation of a gripper that points straight down, fingers along y; the command's rotation vector counts from it."""


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a quaternion (x, y, z, w), with an angle in [0, 2π] as robosuite has it.

    The two quaternions of one rotation are not folded together: published policies were trained on states that were
    not, and the sign carries over (83 % → 97 % on libero_goal for one of them).
    """
    w = float(np.clip(quaternion[3], -1.0, 1.0))
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-9 else quaternion[:3] * (2.0 * np.arccos(w) / sine)


def rotation_vector(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a rotation matrix, with an angle in [0, π)."""
    skew = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = float(np.linalg.norm(skew)), float((np.trace(matrix) - 1) / 2)
    return skew if sine < 1e-9 else skew * (np.arctan2(sine, cosine) / sine)


def turn(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a rendered picture by 180°."""
    return np.ascontiguousarray(picture[::-1, ::-1])


def rotation_matrix(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrix ``[3, 3]`` of a unit quaternion (x, y, z, w)."""
    x, y, z, w = quaternion
    return 2 * np.array(
        [
            [0.5 - y * y - z * z, x * y - z * w, x * z + y * w],
            [x * y + z * w, 0.5 - x * x - z * z, y * z - x * w],
            [x * z - y * w, y * z + x * w, 0.5 - x * x - y * y],
        ]
    )


def state_vector(obs: Mapping[str, Any]) -> NDArray[np.float32]:
    """End-effector position (m), axis-angle (rad) and two finger positions (m), float32 ``[8]``.

    Args:
        obs: robosuite's observation.
    """
    parts = (obs[POSITION], axis_angle(obs[QUATERNION]), obs[FINGERS])
    return np.concatenate(parts).astype(np.float32)


def command_vector(obs: Mapping[str, Any], gripper: float) -> NDArray[np.float32]:
    """Measured pose and last gripper command, float32 ``[7]``: LIBERO's controller keeps no goal of its own.

    Args:
        obs: robosuite's observation.
        gripper: last commanded value.
    """
    turned = rotation_matrix(obs[QUATERNION]) @ DOWN.T
    return np.concatenate([obs[POSITION], rotation_vector(turned), [gripper]]).astype(np.float32)
