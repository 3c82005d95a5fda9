"""The action convention of two arms, RoboTwin's: fourteen absolute joint targets, at 20 Hz.

    action[0:6]   left arm, joints 1 to 6, rad
    action[6]     left gripper, 0 closed to 1 open
    action[7:13]  right arm, rad
    action[13]    right gripper

The command is the target that the servos are given, `command: float32[14]` in the same order. It follows the action
no faster than the joints may turn. So it depends on the actions alone, never on physics, and a policy or a world model
can integrate it for itself. The arithmetic is float64, rounded to float32 once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.control import PANDA, check_numbers

ARMS = ("left", "right")
ARM_JOINTS = 6
ARM_SIZE = ARM_JOINTS + 1
ACTION_SIZE = 2 * ARM_SIZE
GRIPPERS = (ARM_JOINTS, ACTION_SIZE - 1)  # indices 6 and 13
NAMES = tuple(f"{arm}_{part}" for arm in ARMS for part in (*(f"joint{j}" for j in range(1, 7)), "gripper"))

_LOW = (-2.6, -1.6, 0.0, -1.8, -1.8, -3.0, 0.0)  # the ranges of assets/mjcf/sixaxis.xml; a test compares them
_HIGH = (2.6, 1.6, 2.8, 1.8, 1.8, 3.0, 1.0)
# Joint speeds of the AgileX PiPER (180, 195, 180, 225, 225, 225 degrees per second); the gripper opens in 0.5 s.
_SPEED = (3.1416, 3.4034, 3.1416, 3.9270, 3.9270, 3.9270, 2.0)


@dataclass(frozen=True)
class JointEmbodiment:
    """Constants that turn joint targets into the next command."""

    names: tuple[str, ...] = NAMES  # Of the numbers, in order
    low: tuple[float, ...] = _LOW + _LOW  # Least value of each, rad; grippers 0
    high: tuple[float, ...] = _HIGH + _HIGH  # Greatest value of each, rad; grippers 1
    max_speed: tuple[float, ...] = _SPEED + _SPEED  # Fastest change of each, rad/s; grippers in openings per second
    control_hz: int = PANDA.control_hz  # Control steps per second


SIXAXIS_PAIR = JointEmbodiment()
# rad; hands down and 16 cm up, 28 cm before the bases and 6.5 cm inwards of them, unturned
HOME_QPOS = {
    "left": (-0.228103, 0.178998, 1.719413, 0.0, 1.243181, -0.228103),
    "right": (0.228103, 0.178998, 1.719413, 0.0, 1.243181, 0.228103),
}
MAX_STEP = np.array(_SPEED) / PANDA.control_hz  # rad (or openings) per control step of one arm, float64[7]


def home_command() -> NDArray[np.float32]:
    """Command at the start of every episode, float32[14]: hands over the table's sides, open."""
    return np.array([*HOME_QPOS["left"], 1.0, *HOME_QPOS["right"], 1.0], np.float32)


def next_command(
    command: NDArray[np.float32], action: NDArray[np.floating], embodiment: JointEmbodiment = SIXAXIS_PAIR
) -> NDArray[np.float32]:
    """Command float32[14] one control step later: c' = c + clip(a - c, -v/f, v/f), with a inside the joint limits."""
    before = np.asarray(command, np.float64)
    target = np.clip(np.asarray(action, np.float64), embodiment.low, embodiment.high)
    step = np.array(embodiment.max_speed) / embodiment.control_hz
    # Clipped in float64, where a reached target is reached exactly.
    return np.clip(target, before - step, before + step).astype(np.float32)


def check_action(action: object) -> NDArray[np.float64]:
    """Return an action as float64[14] inside the joint limits; ActionError for others."""
    return check_numbers(action, NAMES, np.array(SIXAXIS_PAIR.low), np.array(SIXAXIS_PAIR.high))
