"""Rotations in one convention for LIBERO, ManiSkill and Isaac Lab; quaternions are (x, y, z, w)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DOWN = np.diag([1.0, -1.0, -1.0])
"""Rotation of a gripper that points straight down, fingers along y; the command's rotation vector counts from it."""


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a quaternion (x, y, z, w), with an angle in [0, 2π] as in robosuite.

    Its sign matters: policies were trained on such states (83 % → 97 % on libero_goal for one of them).
    """
    w = float(np.clip(quaternion[3], -1.0, 1.0))
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-9 else quaternion[:3] * (2.0 * np.arccos(w) / sine)


def quaternion(turned: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quaternion (x, y, z, w) of a rotation vector (rad): :func:`axis_angle` undone, its sign included."""
    angle = float(np.linalg.norm(turned))
    axis = turned / angle if angle > 0 else np.zeros(3)
    return np.append(axis * np.sin(angle / 2), np.cos(angle / 2))


def rotation_vector(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a rotation matrix, with an angle in [0, π)."""
    skew = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = float(np.linalg.norm(skew)), float((np.trace(matrix) - 1) / 2)
    return skew if sine < 1e-9 else skew * (np.arctan2(sine, cosine) / sine)


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


def turn_from_down(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) from :data:`DOWN` to a unit quaternion (x, y, z, w), as in a command."""
    return rotation_vector(rotation_matrix(quaternion) @ DOWN.T)
