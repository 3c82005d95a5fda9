"""A scripted expert for two arms, and a random explorer; goals per hand become small steps of joint targets."""

from functools import cached_property
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl_envs.bimanual import predicates
from worldrl_envs.bimanual.control import ARM_JOINTS, ARM_SIZE, ARMS, HOME_QPOS, MAX_STEP, SIXAXIS_PAIR
from worldrl_envs.bimanual.environment import BimanualEnv
from worldrl_envs.bimanual.scene import BASES
from worldrl_envs.bimanual.skills import SKILLS, Hand
from worldrl_envs.experts import ActionNoise, PlanFollower
from worldrl_envs.kinematics import ArmKinematics
from worldrl_envs.skills import OPEN, Goal

TOOL_STEP = 0.025  # metres per control step at speed 1
TURN_STEP = 0.12  # rad per control step
TOOL_START = 0.005  # metres by which a step may be longer than the one before: 2 m/s² from rest
APPROACH = 0.5  # share of the remaining way in one step, so that a hand slows down before its goal
TOOL_NOISE, TURN_NOISE = 0.01, 0.04  # metres and rad per control step at noise 1
STEADY = np.zeros(12)


class Driver:
    """Turns goals of both hands into joint targets; `speed` is a tool's longest step in units of `TOOL_STEP`."""

    def __init__(self, speed: float) -> None:
        self._arm = {arm: ArmKinematics("sixaxis", HOME_QPOS[arm], MAX_STEP[:ARM_JOINTS]) for arm in ARMS}
        self._home = {arm: self._tool(arm, np.array(HOME_QPOS[arm])) for arm in ARMS}
        self._speed = speed
        self._last: dict[str, float] = dict.fromkeys(ARMS, 0.0)

    def reset(self) -> None:
        """Both hands rest."""
        self._last = dict.fromkeys(ARMS, 0.0)

    def hand(self, env: BimanualEnv, arm: str) -> Hand:
        """One arm as a skill sees it."""
        return Hand(env.sim, arm, self._tool(arm, _joints(env.command, arm)))

    def at_home(self, arm: str) -> Goal:
        """The goal of an arm that has nothing to do."""
        home = self._home[arm]
        return Goal(home[:3], home[3], OPEN)

    def action(
        self, env: BimanualEnv, goals: dict[str, Goal], noise: NDArray[np.float64] = STEADY
    ) -> NDArray[np.float32]:
        """Joint targets float32[14] that bring each hand one step nearer to its goal.

        `noise` float64[12] adds to each tool's step (3) and turn (3), in units of `TOOL_NOISE` and `TURN_NOISE`.
        """
        moves = [self._toward(env, arm, goals[arm], part) for arm, part in zip(ARMS, noise.reshape(2, 6), strict=True)]
        return np.clip(np.concatenate(moves), SIXAXIS_PAIR.low, SIXAXIS_PAIR.high).astype(np.float32)

    def _tool(self, arm: str, joints: NDArray[np.float64]) -> NDArray[np.float64]:
        """Tool position (3, m) in the world and its yaw (rad), float64[4]."""
        pose = self._arm[arm].pose(joints)
        return np.array([*(pose[:3] + BASES[arm]), pose[5]])

    def _toward(self, env: BimanualEnv, arm: str, goal: Goal, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        joints = _joints(env.command, arm)
        tool = self._tool(arm, joints)
        way = goal.position - tool[:3]
        distance = max(float(np.linalg.norm(way)), 1e-9)
        longest = min(self._speed * goal.speed * TOOL_STEP, self._last[arm] + TOOL_START)
        self._last[arm] = min(longest, APPROACH * distance + 0.001, distance)
        turn = np.clip(goal.yaw - tool[3], -TURN_STEP, TURN_STEP)
        position = tool[:3] + way * (self._last[arm] / distance) + TOOL_NOISE * noise[:3] - BASES[arm]
        pose = np.array([*position, *(TURN_NOISE * noise[3:])])
        pose[5] += tool[3] + turn
        return np.array([*self._arm[arm].solve(pose, joints), 0.5 * (1 - goal.gripper)])


def _joints(command: NDArray[np.float32], arm: str) -> NDArray[np.float64]:
    start = ARM_SIZE * ARMS.index(arm)
    return command[start : start + ARM_JOINTS].astype(np.float64)


class BimanualExpert(PlanFollower):
    """Follows a task's plan, move after move; an arm without a part in a move goes home. See `PlanFollower`.

    `noise` is in units of 1 cm and 0.04 rad per control step, `speed` in units of 2.5 cm.
    """

    NOISE_SIZE = len(STEADY)

    @cached_property
    def _driver(self) -> Driver:
        return Driver(self._speed)

    def _begin(self) -> None:
        self._enter(0)
        self._chosen: dict[str, str] = {}
        self._driver.reset()

    def _enter(self, index: int) -> None:
        self._index = index
        self._memory = {arm: self._fresh_memory() for arm in ARMS}

    def act(self, env: gymnasium.Env) -> NDArray[np.float32]:
        """The next action, float32[14], for the environment's present state."""
        base = cast("BimanualEnv", env.unwrapped)
        goals = {arm: self._driver.at_home(arm) for arm in ARMS}
        move = {self._which(base, arm, names): (skill, names) for arm, skill, *names in self._plan[self._index]}
        for arm, (skill, names) in move.items():
            goals[arm] = SKILLS[skill](self._driver.hand(base, arm), self._memory[arm], *names)
        action = self._driver.action(base, goals, self._noise.sample())
        self._advance([goals[arm] for arm in move])
        return action

    def _which(self, env: BimanualEnv, arm: str, names: list[str]) -> str:
        """The arm meant; "near" is decided when its thing is first dealt with and kept for the episode."""
        if arm != "near":
            return arm
        return self._chosen.setdefault(names[0], predicates.nearer_arm(env.sim, names[0]))

    def _advance(self, goals: list[Goal]) -> None:
        if any(goal.failed for goal in goals):
            self._enter(max(self._index - 1, 0))
        elif all(goal.reached for goal in goals) and self._index + 1 < len(self._plan):
            self._enter(self._index + 1)


class BimanualReach:
    """Explores with both hands: reaches for random points (a share of them on objects), opens, closes, nudges."""

    def __init__(self, *, generator: np.random.Generator, object_share: float = 0.5) -> None:
        self._generator, self._object_share = generator, object_share
        self._driver = Driver(1.0)
        self._noise = ActionNoise(0.15, generator=generator, size=len(STEADY))
        self._goals: dict[str, Goal] = {}
        self._left = dict.fromkeys(ARMS, 0)

    def reset(self, env: gymnasium.Env) -> None:
        """Forget the last points; `env` has just been reset."""
        self._left = dict.fromkeys(ARMS, 0)
        self._driver.reset()
        self._noise.reset()

    def act(self, env: gymnasium.Env) -> NDArray[np.float32]:
        """The next action, float32[14]."""
        base = cast("BimanualEnv", env.unwrapped)
        for arm in ARMS:
            if self._left[arm] == 0:
                self._goals[arm], self._left[arm] = self._draw(base, arm), int(self._generator.integers(8, 26))
            self._left[arm] -= 1
        return self._driver.action(base, self._goals, self._noise.sample())

    def _draw(self, env: BimanualEnv, arm: str) -> Goal:
        generator, side = self._generator, 1.0 if arm == "left" else -1.0
        point = generator.uniform((0.26, -0.03, 0.02), (0.42, 0.19, 0.18)) * (1, side, 1)
        things: list[Any] = [thing for thing in env.sim.targets() if thing[1] * side > -0.03]
        if things and generator.random() < self._object_share:
            point[:2] = things[generator.integers(len(things))][:2] + generator.normal(0, 0.015, 2)
            point[2] = generator.uniform(0.02, 0.06)
        yaw, gripper = generator.uniform(-0.5, 0.5), generator.choice([-1.0, 1.0])
        return Goal(point, yaw, gripper, speed=generator.uniform(0.4, 1.0))
