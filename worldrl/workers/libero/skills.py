"""Scripted experts over privileged state for LIBERO's other goals: drawers, a knob turned, a plate pushed.

A leg moves the hand to a point, tilted where it must reach in from the side, until it is there or its time is spent;
the last one lasts. Positions are read in each step. Handle and knob are those of ``wooden_cabinet`` and ``flat_stove``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero.expert import CLOSED, GAIN, OPEN, UP, PickAndPlace, World, grip_of
from worldrl.workers.libero.facts import ROTATION_SCALE
from worldrl.workers.link.rotations import DOWN, quaternion, rotation_matrix, rotation_vector

Point = NDArray[np.float64]
Aim = Callable[[World, Point], Point]
"""Maps the world and the hand's position at the leg's begin to the hand's target (m)."""
FOREVER = 1000
TURN_GAIN, TURN_MOST = 0.6, 0.5
"""Share of the remaining angle per step, and the largest rotation action: the arm follows with a lag."""
CABINETS, STOVES = ("wooden_cabinet", "yellow_cabinet"), ("flat_stove", "yellow_stove")
HANDLE = np.array([0.004, -0.113, -0.006])  # A drawer's handle, a bar along x, in the frame of the drawer's region (m)
SHUT_M = 0.1  # A drawer with a smaller extension is pulled before anything is put into it; LIBERO calls 0.14 m open
PULL_M = 0.17
REACHABLE = ("top_region", "middle_region")
"""Drawers with reachable handles; the bottom one has no room above the table."""
OUTSIDE_M = 0.018
"""How much further out the fingers close on the rim of an object for the drawer; closing pulls it inwards."""
ASIDE_M = 0.06
"""Horizontal offset of the hand's vertical path. Straight above the grasp an open finger would hit the open drawer, and
a lifted object would hit the drawer from below, or the cabinet's edge."""
AWAY = -0.45  # Angle (rad) about y of the hand for the object, its back away from the open drawer
DRAWERS = (*REACHABLE, "bottom_region")
WITHIN = np.array([0.04, 0.085, 0.105])  # Half the height, depth and width of a drawer, in the frame of its region (m)
INWARD_M = 0.008
"""How much further in the fingers close on the rim of an object in a drawer: the 5 cm beside it are too narrow for an
open finger around the rim's middle."""
LEAN = 1.3  # Angle (rad) from straight down of the hand at a handle: a steeper hand would hit the handle above
Y = np.array([0.0, 1.0, 0.0])
BAR = np.array([0.034, 0.0, 0.038])  # The far end of the bar on the knob, from the stove's place (m)
BACK = 0.5  # Angle (rad) of the hand towards the robot at the knob: straight down, the elbow is at its limit there
HIGH_M, STRETCH = 1.05, -0.3
"""Objects above this height (m; the table is at 0.9) are gripped with a hand turned by this angle (rad) about y: the
fingers point away from the robot, which shortens the arm's way."""
BESIDE_M, SWEEP_M = 0.05, 0.05  # Where the closed fingers come down beside the bar, and how far beyond it they push
INSIDE_M = 0.003  # Height of the closed hand over a plate's place during the push: below the rim, above the bottom
AHEAD_M = 0.006
"""Distance from a plate's middle, in the direction of the push, at which the hand comes down: over the middle, the
hand, 20 cm wide, may hit the cabinet behind."""
PUSH_M = 0.03  # Largest distance of the pushing hand's target: a faster hand would climb over the rim


class Expert(Protocol):
    """One episode's plan."""

    @property
    def over(self) -> bool:
        """Whether it has nothing left to do but stay."""
        ...

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action ``[7]`` in [-1, 1]."""
        ...


@dataclass(frozen=True)
class Leg:
    """One leg."""

    aim: Aim  # target of the hand
    gripper: float  # −1 open, +1 closed
    turn: Point  # rotation vector (rad) from a hand that points straight down
    least: int = 0  # minimum number of steps
    most: int = 60  # maximum number of steps, reached or not
    reached_m: float = 0.01  # distance that counts as reached (m)
    reached_rad: float = 0.1  # angle that counts as reached


class Legs:
    """Legs in sequence; the last leg does not end."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self._legs = list(legs)
        self._age, self._anchor = 0, np.zeros(3)

    @property
    def over(self) -> bool:
        """Whether the last leg is the current one."""
        return len(self._legs) == 1

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action, float32 ``[7]`` in [-1, 1]."""
        hand = np.array(world.obs["robot0_eef_pos"])
        if self._age == 0:
            self._anchor = hand
        way, turn = self._lack(world, hand)
        leg = self._legs[0]
        there = float(np.linalg.norm(way)) < leg.reached_m and float(np.linalg.norm(turn)) < leg.reached_rad
        if not self.over and ((there and self._age >= leg.least) or self._age >= leg.most):
            self._legs.pop(0)
            self._age, self._anchor = 0, hand
            way, turn = self._lack(world, hand)
        self._age += 1
        motion = np.clip(GAIN * way, -1, 1)
        return np.array([*motion, *turning(turn), self._legs[0].gripper], np.float32)

    def _lack(self, world: World, hand: Point) -> tuple[Point, Point]:
        """Remaining way (m) and rotation vector (rad) of the current leg."""
        leg = self._legs[0]
        return leg.aim(world, self._anchor) - hand, turn_lack(world, leg.turn)


def turn_lack(world: World, turn: Point) -> Point:
    """Remaining rotation vector (rad) of the hand to one given from straight down."""
    hand = rotation_matrix(np.asarray(world.obs["robot0_eef_quat"], np.float64))
    return rotation_vector(rotation_matrix(quaternion(turn)) @ DOWN @ hand.T)


def turning(lack: Point) -> Point:
    """The action's three rotation numbers towards the remaining rotation."""
    return np.clip(TURN_GAIN * lack / ROTATION_SCALE, -TURN_MOST, TURN_MOST)


class Turned:
    """Puts an object down with a hand held at rotation ``turn`` (rad, from straight down); it would sag."""

    def __init__(self, put: PickAndPlace, turn: Point) -> None:
        self._put, self._turn = put, turn

    @property
    def over(self) -> bool:
        """Whether the hand has let go and left."""
        return self._put.over

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action, float32 ``[7]`` in [-1, 1]."""
        action = self._put.act(world)
        action[3:6] = turning(turn_lack(world, self._turn))
        return action


def stay(world: World, anchor: Point) -> Point:
    """Position of the hand at the leg's begin."""
    return anchor


# --- a drawer -------------------------------------------------------------------------------------------------------


def drawer_legs(world: World, region: str) -> list[Leg]:
    """Pull the drawer of a region open, let go, and leave upwards."""
    out = outward(world, region)
    lean = LEAN * np.cross(UP, out)

    def before(distance_m: float) -> Aim:
        return lambda world, _: handle(world, region) + distance_m * out

    return [
        Leg(before(0.15), OPEN, lean, reached_m=0.1, reached_rad=2.0),
        Leg(before(0.1), OPEN, lean, reached_m=0.02, reached_rad=0.2),
        Leg(before(0.0), OPEN, lean, most=40),
        Leg(stay, CLOSED, lean, least=10, most=10),
        Leg(lambda _, anchor: anchor + PULL_M * out, CLOSED, lean),
        Leg(stay, OPEN, lean, least=8, most=8),
        Leg(before(0.06), OPEN, lean, most=30, reached_m=0.02),
        Leg(lambda _, anchor: anchor + 0.2 * UP, OPEN, AWAY * Y, reached_m=0.05, reached_rad=0.15),
        Leg(stay, OPEN, AWAY * Y, most=FOREVER),
    ]


def outward(world: World, region: str) -> Point:
    """Direction in which a region's drawer opens."""
    return -world.matrix(region)[:, 1]


def handle(world: World, region: str) -> Point:
    """Place of the handle of a region's drawer (m)."""
    return world.position(region) + world.matrix(region) @ HANDLE


class OpenAndPut:
    """Pulls a region's drawer open, then puts an object into it."""

    def __init__(self, world: World, region: str) -> None:
        self._drawer = Legs(drawer_legs(world, region))
        self._put: Turned | None = None

    @property
    def over(self) -> bool:
        """Whether the hand has let go and left."""
        return self._put is not None and self._put.over

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action, float32 ``[7]`` in [-1, 1]."""
        if self._put is None and self._drawer.over:
            put = PickAndPlace(world, outer_side(world), ASIDE_M * outward(world, world.goals[0][2]))
            self._put = Turned(put, AWAY * Y)
        return (self._put or self._drawer).act(world)


def outer_side(world: World) -> Point:
    """Offset of the grip on an object for an open drawer: on the side away from it, and further out."""
    _, name, region = world.goals[0]
    rim = grip_of(name).side_m
    return (rim + OUTSIDE_M if rim else 0.0) * outward(world, region)


def holding_drawer(world: World, name: str) -> str | None:
    """Region of the open drawer that contains an object; None for none."""
    regions = [f"{fixture}_{level}" for fixture in world.fixtures if fixture.startswith(CABINETS) for level in DRAWERS]
    opened = [region for region in regions if (world.pulled(region) or 0.0) > SHUT_M]
    return next((region for region in opened if lies_in(world, name, region)), None)


def lies_in(world: World, name: str, region: str) -> bool:
    """Whether an object's origin is within a drawer's walls."""
    offset = world.matrix(region).T @ (world.position(name) - world.position(region))
    return bool((np.abs(offset) < WITHIN).all())


def take_out(world: World, region: str) -> Turned:
    """Take an object out of a region's open drawer by its width, or a finger would hit its front, on a slanted path."""
    width = leftward(np.cross(UP, outward(world, region)))
    put = PickAndPlace(world, roomier_side(world, region, width), ASIDE_M * outward(world, region))
    return Turned(put, across(width))


def leftward(width: Point) -> Point:
    """The one of two opposite directions with the shorter turn for the hand: its two fingers are equivalent."""
    return width if width[1] >= 0 else -width


def across(width: Point) -> Point:
    """Rotation vector (rad) of a hand whose fingers open along a direction."""
    return np.arctan2(-width[0], width[1]) * UP


def roomier_side(world: World, region: str, width: Point) -> Point:
    """Offset of the grip on an object in a drawer: on the side with more room to the drawer's wall."""
    name = world.goals[0][1]
    rim = grip_of(name).side_m
    across = float(width @ (world.position(name) - world.position(region)))
    return (rim - INWARD_M if rim else 0.0) * (-width if across > 0 else width)


# --- a knob, a plate ------------------------------------------------------------------------------------------------


def knob_legs(world: World, stove: str) -> list[Leg]:
    """Come down beside the far end of the knob's bar with closed fingers, and push it round."""
    bar, back = world.position(stove) + BAR, BACK * Y
    beside = bar - BESIDE_M * Y
    return [
        Leg(at(beside + 0.12 * UP), CLOSED, back, reached_m=0.02),
        Leg(at(beside), CLOSED, back),
        Leg(at(bar + SWEEP_M * Y), CLOSED, back, most=FOREVER),
    ]


def plate_legs(world: World, plate: str, target: str) -> list[Leg]:
    """Press closed fingers into a plate and push it over the table, with objects before it."""
    straight = np.zeros(3)

    def ahead(world: World, most_m: float) -> Point:
        way = (world.position(target) - world.position(plate))[:2]
        return np.append(way * min(1.0, most_m / max(float(np.linalg.norm(way)), 1e-6)), 0.0)

    inside = world.position(plate) + ahead(world, AHEAD_M) + INSIDE_M * UP

    def push(world: World, _: Point) -> Point:
        return np.append((np.array(world.obs["robot0_eef_pos"]) + ahead(world, PUSH_M))[:2], inside[2])

    return [
        Leg(lambda _, anchor: np.append(inside[:2], anchor[2]), CLOSED, straight, reached_m=0.03),
        Leg(at(inside), CLOSED, straight, most=40),
        Leg(push, CLOSED, straight, most=FOREVER),
    ]


def at(place: Point) -> Aim:
    """A constant place."""
    return lambda world, anchor: place


# --- which ----------------------------------------------------------------------------------------------------------


def known_alone(goal: Sequence[str], movable: Sequence[str]) -> bool:
    """Whether a predicate is an object put on or in something, a cabinet's drawer open, or a stove turned on."""
    verb, name, *_ = (word.lower() for word in goal)
    if verb == "open":
        return name.startswith(CABINETS) and name.endswith(REACHABLE)
    return (verb == "turnon" and name.startswith(STOVES)) or (verb in ("on", "in") and name in movable)


def make_single(world: World) -> Expert:
    """Choose an expert by the first goal of a world, which :func:`known_alone` knows."""
    verb, name, *target = world.goals[0]
    if verb.lower() == "open":
        return Legs(drawer_legs(world, name))
    if verb.lower() == "turnon":
        return Legs(knob_legs(world, name))
    if "plate" in name:
        return Legs(plate_legs(world, name, *target))
    if (drawer := holding_drawer(world, name)) is not None:
        return take_out(world, drawer)
    if "moka_pot" in name:
        return Turned(PickAndPlace(world), across(leftward(world.matrix(name)[:, 0])))
    if world.position(name)[2] > HIGH_M:
        return Turned(PickAndPlace(world), STRETCH * Y)
    shut = world.pulled(target[0])
    return PickAndPlace(world) if shut is None or shut > SHUT_M else OpenAndPut(world, target[0])
