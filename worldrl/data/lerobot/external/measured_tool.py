"""Constants of a robot that moves one tool, measured by its recorded commands: they follow exactly from the actions."""

from __future__ import annotations

import math

import numpy as np
import torch

from worldrl.core.embodiment import Embodiment, quaternion_from_rotvec, quaternion_product, rotvec_from_quaternion
from worldrl.data.lerobot.external.sample import Sample

MOVING = 0.1
"""Least length of an action by which a scale is measured."""
SPARE_M = 0.05
"""Room around the commanded positions that the workspace is given."""


def describe_tool(commanded: Sample, control_hz: float) -> Embodiment:
    """Measure the constants by commands ``[n, 7]`` in the place of the state, with the actions."""
    rows = commanded.within_episodes()
    command = torch.from_numpy(commanded.state.astype(np.float64))
    action = commanded.action[rows].astype(np.float64)
    before, after = command[rows], command[rows + 1]
    back = quaternion_from_rotvec(-before[:, 3:6])
    turn = rotvec_from_quaternion(quaternion_product(quaternion_from_rotvec(after[:, 3:6]), back))
    position = command[:, :3].numpy()
    low, high = position.min(axis=0) - SPARE_M, position.max(axis=0) + SPARE_M
    largest = float(command[:, 3:6].norm(dim=1).max())
    return Embodiment(
        position_scale=_scale((after - before)[:, :3].norm(dim=1).numpy(), action[:, :3]),
        rotation_scale=_scale(turn.norm(dim=1).numpy(), action[:, 3:6]),
        workspace_low=tuple(np.floor(low * 100).tolist()[i] / 100 for i in range(3)),
        workspace_high=tuple(np.ceil(high * 100).tolist()[i] / 100 for i in range(3)),
        max_rotation=min(math.pi, math.ceil(10 * largest + 1) / 10),
        control_hz=control_hz,
    )


def _scale(moved: np.ndarray, action: np.ndarray) -> float:
    """Motion at action 1, to three digits; 1 where nothing moved."""
    length = np.linalg.norm(action, axis=1)
    moving = length > MOVING
    found = float(np.median(moved[moving] / length[moving])) if moving.any() else 0.0
    return float(f"{found:.3g}") if found > 0 else 1.0
