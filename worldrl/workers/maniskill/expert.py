"""A scripted expert for ManiSkill's four cube tasks over privileged state, as legs that end near a point or by time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.maniskill import facts

OPEN, CLOSED = -1.0, 1.0
GAIN = 1.0  # Share of the remaining way per step; the arm follows with a lag
FOREVER = 1000
CUBE_M = 0.04
HOVER_M = 0.08
BEHIND_M = 0.09  # Distance before or behind a cube at which the closed fingers come down: half a cube and half a hand
PUSH_M = 0.14  # How far beyond the cube's place the tool pushes or pulls: the target's near edge is 0.1 m away

Point = NDArray[np.float64]


class World(Protocol):
    """State that the expert reads."""

    def tool(self) -> tuple[Point, NDArray[np.float64]]:
        """Position (m) and quaternion of the tool."""
        ...

    def objects(self) -> dict[str, Point]:
        """Positions (m) by name."""
        ...

    def heading(self, name: str) -> float:
        """Angle (rad) of an object about the vertical."""
        ...


class NoExpertError(RuntimeError):
    """The expert does not support this task."""


@dataclass(frozen=True)
class Leg:
    """One leg."""

    # Maps the objects' places to a point (m); initial places are under the same names with `start:`.
    aim: Callable[[Mapping[str, Point]], Point]
    gripper: float  # -1 open, +1 closed
    most: int = 15  # maximum number of steps
    least: int = 0  # minimum number of steps
    near_m: float = 0.01  # distance that counts as reached (m)


def _above(name: str, height: float) -> Callable[[Mapping[str, Point]], Point]:
    return lambda places: places[name] + np.array([0, 0, height])


def _beside(name: str, x: float, height: float = 0.0) -> Callable[[Mapping[str, Point]], Point]:
    return lambda places: places[f"start:{name}"] + np.array([x, 0, height])


def _grasp(name: str) -> list[Leg]:
    return [
        Leg(_above(name, HOVER_M), OPEN, near_m=0.02),
        Leg(_above(name, 0.0), OPEN, near_m=0.006),
        Leg(_above(name, 0.0), CLOSED, most=3, least=3),
    ]


def _sweep(direction: float) -> list[Leg]:
    side = -direction * BEHIND_M
    return [
        Leg(_beside("cube", side, 0.1), CLOSED, near_m=0.03),
        Leg(_beside("cube", side), CLOSED, near_m=0.015),
        Leg(_beside("cube", direction * PUSH_M), CLOSED, most=FOREVER),
    ]


PLANS: Mapping[str, Sequence[Leg]] = {
    "PickCube-v1": [*_grasp("cube"), Leg(_above("goal_site", 0.0), CLOSED, most=FOREVER)],
    "StackCube-v1": [
        *_grasp("cubeA"),
        Leg(_above("cubeA", 0.1), CLOSED, most=4),
        Leg(_above("cubeB", CUBE_M + 0.04), CLOSED, near_m=0.008),
        Leg(_above("cubeB", CUBE_M), CLOSED, near_m=0.005, most=10),
        Leg(_above("cubeB", CUBE_M), OPEN, most=3, least=3),
        Leg(_above("cubeB", 0.2), OPEN, most=FOREVER),
    ],
    "PushCube-v1": _sweep(+1.0),
    "PullCube-v1": _sweep(-1.0),
}
GRASPED = {"PickCube-v1": "cube", "StackCube-v1": "cubeA"}  # The cube whose faces the fingers are aligned with


def quarter_turn(angle: float) -> float:
    """The angle modulo quarter turns, in [-π/4, π/4): a cube is symmetric under them."""
    return float((angle + np.pi / 4) % (np.pi / 2) - np.pi / 4)


class CubeExpert:
    """The expert's state in one episode of a reset world; NoExpertError for a task that it does not support."""

    def __init__(self, task: str, world: World) -> None:
        if task not in PLANS:
            raise NoExpertError(f"no scripted expert for {task}; it plays {', '.join(PLANS)}")
        self._legs, self._cube = list(PLANS[task]), GRASPED.get(task)
        self._start = {f"start:{name}": place for name, place in world.objects().items()}
        self._spent = 0

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action ``[7]`` in [-1, 1]."""
        position, quaternion = world.tool()
        places = {**self._start, **world.objects()}
        leg = self._legs[0]
        way = leg.aim(places) - position
        turn = self._turn(world, quaternion) if leg.gripper == OPEN else 0.0
        near = bool(np.linalg.norm(way) < leg.near_m) and abs(turn) < 0.1
        self._spent += 1
        if len(self._legs) > 1 and self._spent >= leg.least and (near or self._spent >= leg.most):
            self._legs.pop(0)
            self._spent = 0
        motion = np.clip(GAIN * way / facts.POSITION_SCALE, -1, 1)
        yaw = float(np.clip(turn / facts.ROTATION_SCALE, -1, 1))
        return np.array([*motion, 0, 0, yaw, leg.gripper], np.float32)

    def _turn(self, world: World, quaternion: NDArray[np.float64]) -> float:
        """Angle (rad) from the hand to the cube's nearest face."""
        if self._cube is None:
            return 0.0
        x, y, z, w = quaternion
        hand = float(np.arctan2(2 * (x * y + z * w), 1 - 2 * (y * y + z * z)))
        return quarter_turn(world.heading(self._cube) - hand)
