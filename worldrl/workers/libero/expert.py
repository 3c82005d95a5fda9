"""A scripted expert for LIBERO's pick-and-place tasks, over privileged state. It knows goals (on A B) and (in A B).

A waypoint is over when it is reached or its time is spent. Bowls are held by their rim (the fingers open along y, so on
the +y or the −y side), everything else by its middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.server import Refusal

GAIN = 16.0  # Action per metre of distance: full speed beyond 6 cm
OPEN, CLOSED = -1.0, 1.0
UP = np.array([0.0, 0.0, 1.0])
STRAIGHT = np.zeros(3)
HOVER_M = 0.12
REACHED_M = 0.008
RACK_M = 0.04
FIXTURE_M = 0.15  # Half the width of a cabinet, about


class World(Protocol):
    """What the expert may read."""

    obs: dict[str, Any]

    @property
    def goals(self) -> list[list[str]]:
        """The task's predicates."""
        ...

    def holds(self, goal: list[str]) -> bool:
        """Whether one of the predicates holds."""
        ...

    @property
    def fixtures(self) -> list[str]:
        """Names of what stands still: cabinets, stoves, racks."""
        ...

    @property
    def movable(self) -> list[str]:
        """Names of the movable objects."""
        ...

    def position(self, name: str) -> NDArray[np.float64]:
        """World position (m)."""
        ...

    def matrix(self, name: str) -> NDArray[np.float64]:
        """Rotation matrix ``[3, 3]`` of an object or region."""
        ...

    def pulled(self, name: str) -> float | None:
        """How far out the drawer of a region is (m); None for what is no drawer's."""
        ...


class NoExpertError(Refusal):
    """The expert does not know this kind of goal."""


@dataclass(frozen=True)
class Grip:
    """How a kind of object is held."""

    side_m: float = 0.0  # distance of the grip from the object's middle along y (m); the rim of a bowl
    middle_m: float = 0.0  # of its middle from its origin, along its own x (m); a handle is on the other side
    height_m: float = 0.0  # of the grip above the object's origin (m)
    place_m: float = 0.03  # height of the object's origin above the target's when it is let go (m)
    carry_m: float = 0.16  # height of the hand over everything that the object passes (m)


BOWL = Grip(side_m=0.048, height_m=0.038, place_m=0.03)
BOX = Grip(height_m=0.0, place_m=0.06)
BOTTLE = Grip(height_m=0.125, place_m=0.01, carry_m=0.25)
CARTON = Grip(height_m=0.045, place_m=0.08, carry_m=0.27)
"""16 cm tall: gripped at its middle it would meet the palm, and carried lower it would push a basket away."""
MUG = Grip(side_m=0.041, middle_m=0.0165, height_m=0.075, place_m=0.025)
YELLOW_MUG = Grip(side_m=0.043, middle_m=-0.018, height_m=0.075, place_m=0.025)
MOKA_POT = Grip(height_m=0.076, place_m=0.08, carry_m=0.2)
"""Held by the knob on its lid."""
GRIPS = {
    "bowl": BOWL,
    "yellow_mug": YELLOW_MUG,
    "mug": MUG,
    "moka_pot": MOKA_POT,
    "bottle": BOTTLE,
    "milk": CARTON,
    "orange_juice": CARTON,
}


def grip_of(name: str) -> Grip:
    """Choose a grip by the object's kind."""
    return next((grip for kind, grip in GRIPS.items() if kind in name), BOX)


@dataclass(frozen=True)
class Waypoint:
    """One leg."""

    phase: str  # see PickAndPlace.target
    gripper: float  # −1 open, +1 closed
    least: int = 0  # steps it takes at least
    most: int = 60  # steps after which it is over, reached or not
    reached_m: float = REACHED_M  # distance that counts as reached (m)


PLAN: Sequence[Waypoint] = (
    Waypoint("high over the grasp", OPEN, reached_m=0.03),
    Waypoint("over the grasp", OPEN, reached_m=0.015),
    Waypoint("at the grasp", OPEN, most=40),
    Waypoint("hold", CLOSED, least=10, most=10),
    Waypoint("lift", CLOSED, most=30, reached_m=0.02),
    Waypoint("over the target", CLOSED, reached_m=0.012),
    Waypoint("at the target", CLOSED, most=40, reached_m=0.012),
    Waypoint("hold", OPEN, least=8, most=8),
    Waypoint("retreat", OPEN, most=30, reached_m=0.02),
)


def choose_side(world: World, name: str, goal: str, side_m: float) -> NDArray[np.float64]:
    """Offset of the grip from the object's middle: the side along y with more room around it, here and at the goal."""
    standing = dict.fromkeys(world.fixtures, FIXTURE_M)
    here = {other: 0.0 for other in world.movable if other != name} | standing
    there = {fixture: wide for fixture, wide in standing.items() if not goal.startswith(fixture)}
    sides = [np.array([0.0, sign * side_m]) for sign in (1.0, -1.0)]
    room = [
        min(_room(world, middle(world, name)[:2] + side, here), _room(world, world.position(goal)[:2] + side, there))
        for side in sides
    ]
    return np.append(sides[int(np.argmax(room))], 0.0)


def _room(world: World, place: NDArray[np.float64], around: Mapping[str, float]) -> float:
    """Distance (m) to the nearest of what stands around, each less its own half width."""
    return min((math.dist(world.position(other)[:2], place) - wide for other, wide in around.items()), default=1.0)


def middle(world: World, name: str) -> NDArray[np.float64]:
    """The middle of an object at its origin's height (m): a mug's origin is between its middle and its handle."""
    offset = grip_of(name).middle_m
    return world.position(name) + (offset * world.matrix(name)[:, 0] if offset else 0.0)


def goal_place(world: World, name: str) -> NDArray[np.float64]:
    """Where something is to be put down (m): a rack's region lies at its lower end, so there further up its slope."""
    place = world.position(name)
    return place + RACK_M * world.matrix(name)[:, 2] if "rack" in name else place


class PickAndPlace:
    """One episode's plan for a reset world. ``side``: offset of the grip from the object's middle (m), chosen if None.

    ``aside``: how far beside the grasp the hand comes down and goes up (m), where something hangs over the object.
    """

    def __init__(
        self, world: World, side: NDArray[np.float64] | None = None, aside: NDArray[np.float64] = STRAIGHT
    ) -> None:
        _, self._object, self._goal = world.goals[0]
        self._grip = grip_of(self._object)
        chosen = choose_side(world, self._object, self._goal, self._grip.side_m)
        self._side, self._aside = chosen if side is None else side, aside
        self._start = world.position(self._object)
        self._leg, self._age = 0, 0
        self.over = False  # whether the hand has let go and left
        self._anchor = self._hand(world)

    def _hand(self, world: World) -> NDArray[np.float64]:
        return np.array(world.obs["robot0_eef_pos"])

    def target(self, phase: str, world: World) -> NDArray[np.float64]:
        """Where the hand should be in a phase (m)."""
        grasp = middle(world, self._object) + self._side + self._grip.height_m * UP
        above = max(self._start[2], world.position(self._goal)[2]) + self._grip.carry_m
        if phase == "high over the grasp":
            # At the height it begins with, which is above every fixture, but not above a bowl on a cabinet.
            return np.append(grasp[:2], max(self._anchor[2], grasp[2] + HOVER_M)) + self._aside
        if phase == "over the grasp":
            return grasp + self._aside + HOVER_M * UP
        if phase == "at the grasp":
            return grasp
        if phase == "lift":
            return np.append(self._anchor[:2], above) + self._aside
        if phase == "retreat":
            return self._anchor + HOVER_M * UP
        if phase == "hold":
            return self._anchor
        # The hand moves by what the object itself still lacks, so a slipped grasp is made up for.
        goal = goal_place(world, self._goal)
        lack = goal[:2] - world.position(self._object)[:2]
        xy = self._hand(world)[:2] + lack
        if phase == "over the target":
            return np.append(xy, above)
        drop = goal[2] + self._grip.place_m - world.position(self._object)[2]
        return np.append(xy, self._hand(world)[2] + drop)

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action, float32 ``[7]`` in [-1, 1]."""
        leg = PLAN[self._leg]
        error = self.target(leg.phase, world) - self._hand(world)
        reached = float(np.linalg.norm(error)) < leg.reached_m and self._age >= leg.least
        ended = reached or self._age >= leg.most
        self.over = ended and self._leg == len(PLAN) - 1
        if ended and not self.over:
            self._leg, self._age, self._anchor = self._leg + 1, 0, self._hand(world)
            leg = PLAN[self._leg]
            error = self.target(leg.phase, world) - self._hand(world)
        self._age += 1
        motion = np.clip(GAIN * error, -1, 1)
        return np.array([*motion, 0.0, 0.0, 0.0, leg.gripper], np.float32)
