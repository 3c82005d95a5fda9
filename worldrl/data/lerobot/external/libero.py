"""Whether a dataset shows LIBERO's robot: by its numbers, by its name in the folder, and by how the hand moves."""

from __future__ import annotations

import numpy as np

from worldrl.core.embodiment import COMMAND_NAMES, STATE_NAMES
from worldrl.data.lerobot.external.sample import Sample
from worldrl.workers.libero.facts import POSITION_SCALE

FINGER_M, OPPOSITE_M = 0.05, 0.02
"""Largest position of a LIBERO finger, and largest sum of the two (m), for the right one counts negative."""
ROBOT_TYPES = ("", "unknown", "panda", "franka", "libero")
"""What publishers of LIBERO call its robot; a name that contains one of the last three counts too."""
WINDOW, MOVING_M = 10, 0.01
"""Rows over which a motion is compared, and the least motion that decides (m)."""
AGREES, GAINS = 0.5, (0.02, 1.25)
"""Least correlation of measured with commanded motion, and the range of their ratio: the hand lags and never overtakes."""


def has_libero_numbers(sample: Sample) -> bool:
    """Whether these are LIBERO's sizes, and two opposite fingers end the state."""
    if (sample.state.shape[1], sample.action.shape[1]) != (len(STATE_NAMES), len(COMMAND_NAMES)):
        return False
    left, right = sample.state[:, 6], sample.state[:, 7]
    return bool(np.abs(left).max() < FINGER_M and np.abs(left + right).max() < OPPOSITE_M and np.ptp(left) > 0)


def libero_differences(robot_type: str, sample: Sample) -> str:
    """Say why a robot with LIBERO's numbers is none; empty where nothing speaks against it."""
    kind = robot_type.lower()
    if kind not in ROBOT_TYPES and not any(word in kind for word in ROBOT_TYPES[2:]):
        return f"it has LIBERO's 8 and 7 numbers, but robot_type is {robot_type!r}"
    if np.abs(sample.action[:, :6]).max() > 1 + 1e-3:
        return "it has LIBERO's 8 and 7 numbers, but actions outside [-1, 1]"
    shortest = np.unique(sample.episode, return_counts=True)[1].min()
    window = int(min(WINDOW, shortest - 1))
    rows = sample.within_episodes(window)
    total = np.concatenate([np.zeros((1, 3)), np.cumsum(sample.action[:, :3].astype(np.float64), axis=0)])
    commanded = POSITION_SCALE * (total[rows + window] - total[rows])
    moved = sample.state[rows + window, :3].astype(np.float64) - sample.state[rows, :3]
    if np.abs(commanded).max(initial=0) < MOVING_M:
        return ""
    gain, size = (commanded * moved).sum() / (commanded**2).sum(), np.sqrt((commanded**2).sum() * (moved**2).sum())
    if size > 0 and (commanded * moved).sum() / size >= AGREES and GAINS[0] <= gain <= GAINS[1]:
        return ""
    return (
        f"it has LIBERO's 8 and 7 numbers, but the hand does not move as LIBERO's would: over {window} rows it moves "
        f"{gain:.2g} of what the actions say"
    )
