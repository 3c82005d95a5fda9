"""Scenes that no episode need lead to: everything in its place at once, to learn to read images.

Recorded episodes show few layouts and the same paths of the hand. Here objects stand where a task lets them start, were
pushed about or lie; the hand is anywhere, above an object, or holds one. Poses are set, so a finger may reach into one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.control import PANDA, quat_multiply, rotvec_to_quat
from worldrl_envs.layouts import Layout, sample_layout
from worldrl_envs.scene import OBJECTS, ObjectSpec
from worldrl_envs.task_spec import TaskSpec

ANYWHERE, ABOVE, HOLDING = "anywhere", "above", "holding"
HANDS = (ANYWHERE, ABOVE, HOLDING)
HAND_SHARES = (0.35, 0.3, 0.35)
PUSHED, PUSH = 0.4, 0.03  # share of objects that were pushed, and how far: standard deviation, metres
TOPPLED = 0.08  # share of objects that lie on their side
NEAR = 0.008  # spread of the hand about an object that it is above or holds, metres
GRASP_ABOVE = 0.005  # height of a held object's centre above the tool, metres
LOWEST, HIGHEST = 0.018, 0.19  # of the tool above or with an object, metres
OPEN = 0.04  # travel of an open finger, metres
DRAWER_TRAVEL = 0.12  # metres
TURN, TILT = 0.45, 0.03  # largest yaw of the hand, and the spread of its other two angles, rad


@dataclass(frozen=True)
class Arrangement:
    """One scene."""

    layout: Layout  # Fixtures, the drawer's opening, and objects that `poses` does not name
    poses: Mapping[str, NDArray[np.float64]]  # Of free objects, float64[7]: position (m) and quaternion (w, x, y, z)
    command: NDArray[np.float32]  # Pose of the hand, float32[7] (see `control.py`)
    finger: float  # Opening of each finger, metres


def draw_arrangement(task: TaskSpec, *, generator: np.random.Generator) -> Arrangement:
    """Draw one scene of a single-arm task."""
    drawn = sample_layout(task.layout, generator=generator)
    layout = Layout(drawn.poses, float(generator.uniform(0, DRAWER_TRAVEL)))
    poses = {name: _lying(OBJECTS[name], layout.poses[name], generator) for name in task.objects}
    hand = HANDS[generator.choice(len(HANDS), p=HAND_SHARES)] if poses else ANYWHERE
    if hand == ANYWHERE:
        place = generator.uniform(PANDA.workspace_low, PANDA.workspace_high)
        return Arrangement(layout, poses, _command(place, generator), float(generator.choice([0, OPEN])))
    name = task.objects[generator.integers(len(task.objects))]
    place = poses[name][:3] + NEAR * generator.standard_normal(3)
    place[2] = generator.uniform(LOWEST, HIGHEST)
    command = _command(np.clip(place, PANDA.workspace_low, PANDA.workspace_high), generator)
    if hand == ABOVE:
        return Arrangement(layout, poses, command, float(generator.choice([0, OPEN], p=[0.2, 0.8])))
    poses[name], finger = _held(OBJECTS[name], command, generator)
    return Arrangement(layout, poses, command, finger)


def _lying(what: ObjectSpec, place: tuple[float, float, float], generator: np.random.Generator) -> NDArray[np.float64]:
    """Pose of an object on the table: as placed, pushed about, or toppled."""
    x, y, yaw = place
    if generator.random() < PUSHED:
        x, y = (x, y) + PUSH * generator.standard_normal(2)
        yaw = generator.uniform(-np.pi, np.pi)
    turn, height = rotvec_to_quat(np.array([0, 0, yaw])), what.rest_height
    if generator.random() < TOPPLED:
        turn, height = quat_multiply(turn, rotvec_to_quat(np.array([0, np.pi / 2, 0]))), what.size[0]
    return np.array([x, y, height, *turn])


def _held(
    what: ObjectSpec, command: NDArray[np.float32], generator: np.random.Generator
) -> tuple[NDArray[np.float64], float]:
    """Pose of an object between the fingers, and how far each of them is open."""
    place = command[:3] + NEAR * generator.standard_normal(3) * (0.5, 0.2, 0.7)
    place[2] = max(place[2] + GRASP_ABOVE, what.rest_height)
    turn = rotvec_to_quat(command[3:6] + TILT * generator.standard_normal(3))
    return np.array([*place, *turn]), min(what.size[1] if what.shape == "box" else what.size[0], OPEN)


def _command(place: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float32]:
    turn = np.array([*(TILT * generator.standard_normal(2)), generator.uniform(-TURN, TURN)])
    if generator.random() < 0.4:
        turn[:] = 0  # as at the start of every episode
    return np.array([*place, *turn, -1], np.float32)
