"""LIBERO's observations as published policies see them: pictures, the 8-number state and the commanded pose.

The only place where a picture is turned and a state is put together; the numbers are in ``workers/libero_facts.py``.
What is recorded, what a policy is shown and what is compared with demonstrations all come through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.rotations import axis_angle, quaternion, turn_from_down

POSITION, QUATERNION, FINGERS = "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"
OBSERVED = (POSITION, QUATERNION, FINGERS)
"""What is read of robosuite's observation. It computes some thirty quantities, each looked at in every physics step; the
worker switches the others off."""


def turn(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a rendered picture by 180°."""
    return np.ascontiguousarray(picture[::-1, ::-1])


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
    turned = turn_from_down(obs[QUATERNION])
    return np.concatenate([obs[POSITION], turned, [gripper]]).astype(np.float32)


def robot_observation(
    position: NDArray[Any], turned: NDArray[Any], fingers: NDArray[Any]
) -> dict[str, NDArray[np.float64]]:
    """A recorded pose as robosuite's observation, which :func:`state_vector` and :func:`command_vector` know how to read.

    Args:
        position: of the end effector (m).
        turned: its axis-angle (rad).
        fingers: two positions (m).
    """
    pose = {POSITION: position, QUATERNION: quaternion(turned.astype(np.float64)), FINGERS: fingers}
    return {name: value.astype(np.float64) for name, value in pose.items()}
