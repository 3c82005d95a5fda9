"""A scripted expert for goals of several predicates: one after the other, and again where one does not hold.

Before each the hand rises to the height at which the episode began, above every fixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero.expert import CLOSED, OPEN, STRAIGHT, UP, NoExpertError, PickAndPlace, World, grip_of
from worldrl.workers.libero.skills import (
    FOREVER,
    SHUT_M,
    Aim,
    Expert,
    Leg,
    Legs,
    Turned,
    across,
    handle,
    known_alone,
    leftward,
    make_single,
    outward,
    stay,
)
from worldrl.workers.link.rotations import quaternion, rotation_matrix, rotation_vector

BESIDE_M = 0.055
"""How far from the middle of a region each of two objects is put, along the first axis of its own."""
OUTSIDE_M = 0.02
"""How far before the middle of an open drawer things are put, by a hand whose fingers open along the drawer's width:
nearer, or with its wide side across the drawer, it would hit the handles above."""
PUSH_LEAN = 0.8
"""Angle (rad) from straight down of the hand that pushes a drawer, its wide side along the drawer's: otherwise it would
hit the handles above before the drawer is shut."""
BEFORE_M, INTO_M = 0.05, 0.05  # How far before a drawer's handle the hand comes down, and how far into it the push aims
ORDER = {"turnon": 0, "close": 2}
"""Predicates that come first (0) or last (2); the others are 1."""


class _One:
    """The world of a task with only one of its goals."""

    def __init__(self, world: World, goal: list[str], beside: NDArray[np.float64]) -> None:
        self._world, self._beside = world, beside
        self.goals = [goal]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def position(self, name: str) -> NDArray[np.float64]:
        return self._world.position(name) + (self._beside if name == self.goals[0][-1] else 0.0)


def one(world: World, goal: list[str], beside: NDArray[np.float64]) -> World:
    """The world of a task with only one of its goals, whose place is moved by ``beside`` (m)."""
    return cast("World", _One(world, goal, beside))


class Several:
    """Reaches the goals of a reset world in sequence, and stays when all hold."""

    def __init__(self, world: World) -> None:
        self._high = float(world.obs["robot0_eef_pos"][2])
        self._goals = sorted(world.goals, key=lambda goal: ORDER.get(goal[0].lower(), 1))
        self._rise: Legs | None = self._up()
        self._goal, self._now = self._goals[0], (world, cast("Expert", self._rise))

    @property
    def over(self) -> bool:
        """Never: what has slipped out again is put back."""
        return False

    def act(self, world: World) -> NDArray[np.float32]:
        """Return the next action, float32 ``[7]`` in [-1, 1]."""
        if self._rise is None and self._ended(world):
            self._rise = self._up()
        if self._rise is not None:
            action = self._rise.act(world)
            goal = next((goal for goal in self._goals if not world.holds(goal)), None)
            if not self._rise.over or goal is None:
                return action
            self._rise, self._goal, self._now = None, goal, self._expert(world, goal)
        focused, expert = self._now
        return expert.act(focused)

    def _up(self) -> Legs:
        """Rise to the height of the begin, and stay there."""
        rise = Leg(lambda _, anchor: np.append(anchor[:2], self._high), OPEN, STRAIGHT, reached_m=0.03)
        return Legs([rise, Leg(stay, OPEN, STRAIGHT, most=FOREVER)])

    def _ended(self, world: World) -> bool:
        """Whether the current goal's expert has let go; one that turns or pushes has once the goal holds."""
        _, expert = self._now
        return world.holds(self._goal) if isinstance(expert, Legs) else expert.over

    def _expert(self, world: World, goal: list[str]) -> tuple[World, Expert]:
        """The expert of one goal, and the world that it sees."""
        verb, name, *target = goal
        if verb.lower() == "close":
            return world, Legs(shut_legs(world, name))
        if target and (world.pulled(target[0]) or 0.0) > SHUT_M:
            out = outward(world, target[0])
            focused = one(world, goal, OUTSIDE_M * out)
            width = leftward(np.cross(UP, out))
            return focused, Turned(PickAndPlace(focused, grip_of(name).side_m * width), across(width))
        focused = one(world, goal, self._beside(world, goal))
        return focused, make_single(focused)

    def _beside(self, world: World, goal: list[str]) -> NDArray[np.float64]:
        """Where two objects go onto one region: one on each side of its middle."""
        same = [other for other in self._goals if other[0].lower() == "on" and other[-1] == goal[-1]]
        if len(same) < 2 or goal not in same:
            return STRAIGHT
        return BESIDE_M * (1 if same.index(goal) else -1) * leftward(world.matrix(goal[1])[:, 0])


def shut_legs(world: World, region: str) -> list[Leg]:
    """Come down before the handle of a region's drawer with closed fingers, and push it in."""
    out = outward(world, region)
    width = np.cross(UP, out)
    turned = rotation_matrix(quaternion(PUSH_LEAN * width)) @ rotation_matrix(quaternion(across(leftward(width))))
    lean = rotation_vector(turned)

    def before(distance_m: float, up_m: float) -> Aim:
        return lambda world, _: handle(world, region) + distance_m * out + up_m * UP

    return [
        Leg(before(BEFORE_M, 0.2), CLOSED, lean, reached_m=0.03, reached_rad=0.2),
        Leg(before(BEFORE_M, 0.0), CLOSED, lean, reached_m=0.015),
        Leg(before(-INTO_M, 0.0), CLOSED, lean, most=FOREVER),
    ]


def known_goal(goals: Sequence[Sequence[str]], movable: Sequence[str]) -> bool:
    """Whether the expert knows a task's goal: each predicate alone, or a drawer to be closed after others."""
    if len(goals) == 1:
        return known_alone(goals[0], movable)
    return all(
        known_alone(goal, movable) or (goal[0].lower() == "close" and goal[1].endswith("_region")) for goal in goals
    )


def make_expert(world: World) -> Expert:
    """Choose an expert by the goal of a reset world; NoExpertError for another kind of goal."""
    if not known_goal(world.goals, world.movable):
        raise NoExpertError(
            f"no scripted expert for the goal {world.goals}; it knows (on A B) and (in A B), drawers that it reaches, "
            "stoves to be turned on, and several of these"
        )
    return make_single(world) if len(world.goals) == 1 else Several(world)
