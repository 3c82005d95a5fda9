"""The bimanual expert's skills ``(hand, memory, *names) -> Goal``, reactive as in `skills.py`; metres and radians."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.bimanual import predicates
from worldrl_envs.bimanual.scene import GRIPS, OBJECTS
from worldrl_envs.bimanual.simulation import BimanualSimulation
from worldrl_envs.skills import CLOSED, CLOSING_TIME, HOVER, OPEN, Goal, Memory, grasp

CARRY_HEIGHT = 0.165  # of the tool: a carried cube clears cabinet and bin
RAISE = 0.11  # of the tool above the place it took something, metres
OPEN_ENOUGH = 0.105
FINGERS_OPEN = 0.078  # distance between open fingers, 9 cm at most
SLOW_CLOSING = 14  # control steps: the fingers need ten from open to closed
YAW_ALIGNED = 0.08
MEETING = np.array([0.34, 0.0, 0.12])  # where a block changes hands
BIN_SPOT = 0.037  # of each cube beside the bin's middle
ABOVE = 0.004  # metres between a thing and what it is put on when the hand lets go
DROP_HEIGHT = 0.088  # of the tool above bin and drawer when it lets go
DROPPED = ("bin", "drawer")  # into these a thing falls; elsewhere it is set down
RELEASE_TIME = 6  # control steps from letting go to rising
# A falling thing must be free before the hand rises, or the fingers throw it: a cube is, after seven steps.
DROP_TIME = 8


@dataclass(frozen=True)
class Hand:
    """One arm as a skill sees it."""

    sim: BimanualSimulation  # The scene
    arm: str  # "left" or "right"
    command: NDArray[np.float64]  # Commanded tool position (3, m), yaw (rad) of the present joint targets, float64[4]

    @property
    def side(self) -> float:
        """+1 of the left arm, -1 of the right, as the sign of y."""
        return 1.0 if self.arm == "left" else -1.0

    @property
    def open(self) -> bool:
        """Whether the fingers are open."""
        return self.sim.opening_of(self.arm) > FINGERS_OPEN

    def holds(self, name: str) -> bool:
        """Whether both fingers touch the thing."""
        return predicates.held(self.sim, self.arm, name)

    def stay(self, gripper: float = CLOSED, **marks: bool) -> Goal:
        """Where the hand is commanded to be now."""
        return Goal(self.command[:3], self.command[3], gripper, **marks)

    def rise(self, height: float, gripper: float, **marks: bool) -> Goal:
        """Straight up to a height."""
        return Goal(np.array([*self.command[:2], height]), self.command[3], gripper, **marks)


def fold(yaw: float, period: float, near: float = 0.0) -> float:
    """The equivalent turn nearest to `near`."""
    return float(yaw - period * np.round((yaw - near) / period))


def grip(hand: Hand, name: str) -> tuple[NDArray[np.float64], float]:
    """Where the hand takes a thing, float64[3], and its turn there; two-ended things across, turned inwards."""
    yaw = hand.sim.yaw(name)
    if name not in GRIPS:
        return hand.sim.position(name), fold(yaw, np.pi / 2)
    y, z = GRIPS[name]
    return hand.sim.point(name, np.array([0, hand.side * y, z])), fold(yaw - np.pi / 2, np.pi, -hand.side * np.pi / 2)


def _grasp(hand: Hand, memory: Memory, point: NDArray[np.float64], yaw: float) -> Goal:
    turned = abs(hand.command[3] - yaw) < YAW_ALIGNED
    if not turned and memory.phase != "close":
        return Goal(np.array([*(point[:2] + memory.offset), point[2] + HOVER]), yaw, OPEN)
    return grasp(hand.open, hand.command, memory, point, yaw, SLOW_CLOSING)


def take(hand: Hand, memory: Memory, name: str) -> Goal:
    """Grasp a thing and stay."""
    if not memory.blind and hand.holds(name):
        # Some steps for the fingers to press, before anything is lifted.
        return hand.stay(reached=memory.tick("held") > 3)
    return _grasp(hand, memory, *grip(hand, name))


def pick(hand: Hand, memory: Memory, name: str) -> Goal:
    """Grasp a thing from above and lift it."""
    if memory.phase == "lift" or (not memory.blind and hand.holds(name)):
        memory.enter("lift" if memory.blind else "")
        up = hand.sim.height(name) > predicates.LIFT_HEIGHT + 0.01
        return hand.rise(CARRY_HEIGHT, CLOSED, reached=up)
    return _grasp(hand, memory, *grip(hand, name))


def raise_(hand: Hand, memory: Memory, name: str) -> Goal:
    """Lift what the hand holds straight up, slowly enough for two hands to stay level."""
    if not hand.holds(name) and memory.tick("lost") > CLOSING_TIME:
        return hand.stay(OPEN, failed=True)
    height = GRIPS[name][1] + OBJECTS[name].rest_height + hand.sim.table_height + RAISE
    goal = hand.rise(height, CLOSED, reached=hand.command[2] > height - 0.004)
    return Goal(goal.position, goal.yaw, CLOSED, 0.5, goal.reached)


def bring(hand: Hand, memory: Memory, name: str) -> Goal:
    """Carry a thing to where the hands meet, lying along y."""
    if not hand.holds(name) and memory.tick("lost") > CLOSING_TIME:
        return hand.stay(OPEN, failed=True)
    way = MEETING - hand.sim.position(name)
    yaw = -hand.side * np.pi / 2
    near = float(np.linalg.norm(way)) < 0.012 and abs(hand.command[3] - yaw) < YAW_ALIGNED
    return Goal(hand.command[:3] + way, yaw, CLOSED, reached=near)


def hold(hand: Hand, memory: Memory) -> Goal:
    """Keep the hand closed where it is."""
    return hand.stay(reached=True)


def let_go(hand: Hand, memory: Memory) -> Goal:
    """Open the hand where hands meet, then rise."""
    if memory.tick("release") < RELEASE_TIME:
        return hand.stay(OPEN)
    return hand.rise(MEETING[2] + 0.09, OPEN, reached=hand.command[2] > MEETING[2] + 0.07)


def place(hand: Hand, memory: Memory, name: str, onto: str) -> Goal:
    """Carry a thing over a place, let go, and rise; failed if it did not stay there."""
    if memory.phase == "release":
        time, still = memory.tick("release"), DROP_TIME if onto in DROPPED else RELEASE_TIME
        rise = hand.rise(hand.command[2] if time < still else CARRY_HEIGHT, OPEN)
        over = hand.command[2] > CARRY_HEIGHT - 0.02 and time > still
        there = _lies(hand.sim, name, onto)
        return Goal(rise.position, rise.yaw, OPEN, reached=over and there, failed=over and not there)
    if not hand.holds(name) and memory.tick("dropped") > CLOSING_TIME:
        return hand.stay(OPEN, failed=True)
    thing, spot = hand.sim.position(name), _spot(hand, name, onto)
    way = spot[:2] + memory.offset - thing[:2]
    error = float(np.linalg.norm(way))
    low = spot[2] + hand.command[2] - thing[2]
    if error < 0.006 and hand.command[2] < low + 0.004:
        memory.enter("release")
    yaw = fold(hand.command[3] - hand.sim.yaw(name) + hand.sim.yaw(onto), np.pi / 2) if onto in OBJECTS else 0.0
    height = low if error < 0.015 else CARRY_HEIGHT
    return Goal(np.array([*(hand.command[:2] + way), height]), yaw, CLOSED, 1.0 if error > 0.03 else 0.5)


def _spot(hand: Hand, name: str, onto: str) -> NDArray[np.float64]:
    """Where the middle of a thing should be when the hand lets go, float64[3]."""
    sim, table = hand.sim, hand.sim.table_height
    if onto == "bin":
        return np.array([*sim.point("bin", np.array([hand.side * BIN_SPOT, 0, 0]))[:2], table + DROP_HEIGHT])
    if onto == "drawer":
        # Middle of what sticks out of the cabinet, whose front is 7 cm before its middle.
        front, edge = sim.position("cabinet")[0] - 0.07, sim.position("drawer")[0] - 0.064
        return np.array([(front + edge) / 2, sim.position("drawer")[1], table + DROP_HEIGHT])
    top = OBJECTS[onto].rest_height + sim.position(onto)[2] if onto in OBJECTS else table + 0.004
    return np.array([*sim.position(onto)[:2], top + OBJECTS[name].rest_height + ABOVE])


def _lies(sim: BimanualSimulation, name: str, onto: str) -> bool:
    inside = {"bin": predicates.inside_bin, "drawer": predicates.inside_drawer}
    if onto in inside:
        return inside[onto](sim, name)
    if onto == "zone":
        return predicates.in_zone(name)(sim)
    return predicates.stacked(onto, name)(sim) if onto in OBJECTS else predicates.on_plate(name)(sim)


def open_drawer(hand: Hand, memory: Memory, name: str) -> Goal:
    """Grasp the knob from above and pull it toward the robot, then let go and rise."""
    sim = hand.sim
    if memory.phase == "release" or sim.opening > OPEN_ENOUGH:
        time = memory.tick("release")
        rise = hand.rise(hand.command[2] if time < RELEASE_TIME else CARRY_HEIGHT, OPEN)
        return Goal(rise.position, rise.yaw, OPEN, reached=hand.command[2] > CARRY_HEIGHT - 0.03)
    if _hooked(hand):
        memory.enter("")
        return Goal(np.array([hand.command[0] - 0.02, *sim.knob[1:]]), 0.0, CLOSED, 0.7)
    return _grasp(hand, memory, sim.knob, 0.0)


def _hooked(hand: Hand) -> bool:
    """The fingers are closed around the stem of the handle, behind its tip."""
    off = np.abs(hand.sim.tcp(hand.arm) - hand.sim.knob)
    return bool(hand.sim.opening_of(hand.arm) < 0.04 and np.all(off < (0.02, 0.012, 0.025)))


SKILLS: dict[str, Callable[..., Goal]] = {
    "pick": pick,
    "take": take,
    "raise": raise_,
    "bring": bring,
    "hold": hold,
    "let_go": let_go,
    "place": place,
    "open": open_drawer,
}
