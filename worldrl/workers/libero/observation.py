"""LIBERO's observations as published policies use them: images, state and commanded pose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.rotations import axis_angle, quaternion, turn_from_down

POSITION, QUATERNION, FINGERS = "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"
OBSERVED = (POSITION, QUATERNION, FINGERS)
"""Used quantities of robosuite's observation. It computes some thirty in every physics step; the worker disables the
others."""


def turn(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a rendered image by 180°."""
    return np.ascontiguousarray(image[::-1, ::-1])


def state_vector(obs: Mapping[str, Any]) -> NDArray[np.float32]:
    """End-effector position (m), axis-angle (rad) and two finger positions (m) of an observation, float32 ``[8]``."""
    parts = (obs[POSITION], axis_angle(obs[QUATERNION]), obs[FINGERS])
    return np.concatenate(parts).astype(np.float32)


def command_vector(obs: Mapping[str, Any], gripper: float) -> NDArray[np.float32]:
    """Measured pose and last gripper command, float32 ``[7]``: LIBERO's controller has no goal of its own."""
    turned = turn_from_down(obs[QUATERNION])
    return np.concatenate([obs[POSITION], turned, [gripper]]).astype(np.float32)


def robot_observation(
    position: NDArray[Any], turned: NDArray[Any], fingers: NDArray[Any]
) -> dict[str, NDArray[np.float64]]:
    """A recorded position (m), axis-angle (rad) and two finger positions (m) in the form of robosuite's observation."""
    pose = {POSITION: position, QUATERNION: quaternion(turned.astype(np.float64)), FINGERS: fingers}
    return {name: value.astype(np.float64) for name, value in pose.items()}
