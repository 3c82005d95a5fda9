"""The action convention and the commanded pose that follows exactly from the actions.

An action is LIBERO's seven numbers in [-1, 1], at 20 Hz:

    action[0:3]  change of position, times 0.02 m, along the world's x, y, z
    action[3:6]  change of rotation, times 0.1 rad, axis-angle in the world frame
    action[6]    gripper, -1 open, +1 closed (the fingers follow its sign: > 0 closes)

The commanded pose is `command: float32[7]`

    command[0:3]  position of the tool centre point, metres, world frame
    command[3:6]  rotation vector relative to the gripper-down home orientation, radians
    command[6]    the last commanded gripper value

It depends on the actions alone (never on physics), so a world model and a policy can
integrate it for themselves. The arithmetic here is float64, rounded to float32 once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.errors import ActionError

ACTION_SIZE = 7
GRIPPER_INDEX = 6
GRIPPER_DOWN = np.array([0.0, 1.0, 0.0, 0.0])  # half a turn about x, quaternion (w, x, y, z)
ACTION_NAMES = ("dx", "dy", "dz", "rx", "ry", "rz", "gripper")
ACTION_TOLERANCE = 1e-6  # rounding of a float32 pipeline; within it values are clipped


@dataclass(frozen=True)
class Embodiment:
    """Constants that turn an action into the next commanded pose."""

    position_scale: float = 0.02  # Metres moved by an action component of 1
    rotation_scale: float = 0.1  # Radians turned by an action component of 1
    # Lower corner of the box the commanded position is clipped to, metres.
    workspace_low: tuple[float, float, float] = (0.34, -0.22, 0.012)
    workspace_high: tuple[float, float, float] = (0.66, 0.22, 0.24)  # Upper corner of that box, metres
    max_rotation: float = 0.5  # Largest norm of the rotation vector, radians
    control_hz: int = 20  # Control steps per second


PANDA = Embodiment()
HOME_POSITION = (0.48, 0.0, 0.14)  # metres; 14 cm above the table, over the working area's middle


def home_command() -> NDArray[np.float32]:
    """Commanded pose at the start of every episode, float32[7]: home position, gripper open."""
    return np.array([*HOME_POSITION, 0, 0, 0, -1], np.float32)


def next_command(
    command: NDArray[np.float32], action: NDArray[np.floating], embodiment: Embodiment = PANDA
) -> NDArray[np.float32]:
    """Commanded pose one control step later, float32[7].

    position: p' = clip(p + position_scale * action[0:3], workspace_low, workspace_high)
      rotation: R' = exp(rotation_scale * action[3:6]) R, then its norm clipped to max_rotation
      gripper:  g' = clip(action[6], -1, 1)
    """
    action = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
    before = np.asarray(command, np.float64)
    moved = before[:3] + embodiment.position_scale * action[:3]
    position = np.clip(moved, embodiment.workspace_low, embodiment.workspace_high)
    turned = compose(embodiment.rotation_scale * action[3:6], before[3:6])
    rotation = clip_norm(turned, embodiment.max_rotation)
    return np.concatenate([position, rotation, action[6:]]).astype(np.float32)


def compose(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector of exp(left) exp(right), float64[3], with norm at most pi."""
    return quat_to_rotvec(quat_multiply(rotvec_to_quat(left), rotvec_to_quat(right)))


def clip_norm(vector: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """`vector` shortened to `limit` where it is longer; its direction is kept."""
    norm = float(np.linalg.norm(vector))
    return vector if norm <= limit else vector * (limit / norm)


def rotvec_to_quat(rotvec: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit quaternion (w, x, y, z) of a rotation vector, float64[4]."""
    angle = float(np.linalg.norm(rotvec))
    # sin(a/2)/a tends to 1/2; below 1e-8 rad the quotient would lose all its digits.
    scale = 0.5 if angle < 1e-8 else np.sin(0.5 * angle) / angle
    return np.array([np.cos(0.5 * angle), *(scale * np.asarray(rotvec, np.float64))])


def quat_multiply(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hamilton product of two quaternions (w, x, y, z), float64[4]."""
    w = left[0] * right[0] - left[1:] @ right[1:]
    xyz = left[0] * right[1:] + right[0] * left[1:] + np.cross(left[1:], right[1:])
    return np.array([w, *xyz])


def quat_to_rotvec(quat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector, float64[3], of a unit quaternion (w, x, y, z), with norm at most pi."""
    quat = -quat if quat[0] < 0 else quat
    sine = float(np.linalg.norm(quat[1:]))
    scale = 2.0 if sine < 1e-8 else 2.0 * np.arctan2(sine, quat[0]) / sine
    return scale * quat[1:]


def check_action(action: object) -> NDArray[np.float64]:
    """Return an action as float64[7] inside [-1, 1]; ActionError for others."""
    return check_numbers(action, ACTION_NAMES, -np.ones(ACTION_SIZE), np.ones(ACTION_SIZE))


def check_numbers(
    action: object, names: Sequence[str], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return an action of named numbers as float64 inside its range, else raise ActionError.

    Up to 1e-6 outside is clipped; more is an error: clipping would hide a policy with wrong statistics.
    """
    array = action if isinstance(action, np.ndarray) else _as_array(action, len(names))
    if array.dtype.kind != "f":
        raise ActionError(f"action: dtype must be floating, got {array.dtype}; use float32")
    if array.shape != low.shape:
        raise ActionError(f"action: shape must be ({len(names)},), got {array.shape}")
    number = array.astype(np.float64)
    inside = (number >= low - ACTION_TOLERANCE) & (number <= high + ACTION_TOLERANCE)  # false for NaN
    for index in np.flatnonzero(~inside).tolist():
        rule = f"must be in [{low[index]:g}, {high[index]:g}]" if np.isfinite(number[index]) else "must be finite"
        raise ActionError(f"action[{index}] ({names[index]}): {rule}, got {array.item(index)}")
    return np.clip(number, low, high)


def _as_array(action: object, count: int) -> NDArray[np.generic]:
    try:
        return np.asarray(action)
    except ValueError as error:  # ragged nested sequences
        raise ActionError(f"action: cannot become an array of {count} numbers, got {action!r}") from error
