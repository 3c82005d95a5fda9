"""A reactive scripted expert that solves every task from privileged poses, and a random explorer."""

from abc import abstractmethod
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl_envs.control import PANDA, compose
from worldrl_envs.skills import SKILLS, Goal, Memory
from worldrl_envs.tabletop import TabletopEnv
from worldrl_envs.tasks import get_task

OU_PULL = 0.15  # share of the noise forgotten per control step: correlation over about 7 steps


class ActionNoise:
    """Ornstein-Uhlenbeck noise on an action's motion; `std` is stationary, in half widths of the action range."""

    def __init__(self, std: float, *, generator: np.random.Generator, size: int = 6) -> None:
        self._std, self._generator = std, generator
        self._value = np.zeros(size)

    def reset(self) -> None:
        """Draw the first value from the stationary distribution."""
        self._value = self._std * self._generator.standard_normal(len(self._value))

    def sample(self) -> NDArray[np.float64]:
        """Next value, float64[size]."""
        # The kick's size keeps the stationary standard deviation at `std`.
        kick = self._std * np.sqrt(1 - (1 - OU_PULL) ** 2)
        self._value = (1 - OU_PULL) * self._value + kick * self._generator.standard_normal(len(self._value))
        return self._value


def action_toward(command: NDArray[np.float32], goal: Goal, speed: float = 1.0) -> NDArray[np.float64]:
    """The action that brings the commanded pose nearest to a goal in one step, float64[7]."""
    position = (goal.position - command[:3]) / PANDA.position_scale
    turn = compose(np.array([0, 0, goal.yaw]), -command[3:6].astype(np.float64)) / PANDA.rotation_scale
    # Position is scaled as a whole, so that the path is straight; speed is in action units.
    position *= min(1.0, speed * goal.speed / max(np.abs(position).max(), 1e-9))
    return np.array([*position, *np.clip(turn, -1, 1), goal.gripper])


class PlanFollower:
    """What the experts of both suites are: a place in a task's plan, and the ways to follow it badly on purpose.

    `noise` and `speed` (0, 1] are in the subclass's units. `goal_offset` is the deviation of a per-episode error of the
    grasp and place targets, metres; after a miss it is drawn again at half the size. A `blind` expert tries every skill
    once, whatever becomes of it: near misses whose actions do not tell the outcome. With two arms only a pick is blind.
    """

    NOISE_SIZE: ClassVar[int]  # Components of the noise

    def __init__(
        self,
        task: str,
        *,
        generator: np.random.Generator,
        noise: float = 0.0,
        goal_offset: float = 0.0,
        speed: float = 0.6,
        blind: bool = False,
    ) -> None:
        self._plan: tuple[Any, ...] = get_task(task).plan
        self._noise = ActionNoise(noise, generator=generator, size=self.NOISE_SIZE)
        self._generator, self._goal_offset, self._speed, self._blind = generator, goal_offset, speed, blind
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Go to the start of the plan and forget everything else."""

    def _fresh_memory(self) -> Memory:
        return Memory(self._generator, self._goal_offset, blind=self._blind)

    def reset(self, env: gymnasium.Env) -> None:
        """Forget the last episode; `env` has just been reset."""
        self._begin()
        self._noise.reset()


class ScriptedExpert(PlanFollower):
    """Follows a task's plan, skill after skill; see `PlanFollower`. `noise` is a fraction of the action range.

    `speed` is the largest position component: at 0.6 a pick takes about 25 steps, at 1 about 15, harder to imitate.
    """

    NOISE_SIZE = 6

    def _begin(self) -> None:
        self._index, self._memory = 0, self._fresh_memory()

    def act(self, env: gymnasium.Env) -> NDArray[np.float32]:
        """The next action, float32[7], for the environment's present state."""
        base = cast("TabletopEnv", env.unwrapped)
        goal = self._goal(base)
        action = action_toward(base.command, goal, self._speed)
        action[:6] += self._noise.sample()
        return np.clip(action, -1, 1).astype(np.float32)

    def _goal(self, env: TabletopEnv) -> Goal:
        skill, *names = self._plan[self._index]
        goal = SKILLS[skill](env.sim, env.command, self._memory, *names)
        step = int(goal.reached and self._index + 1 < len(self._plan)) - int(goal.failed)
        if step:
            self._index, self._memory = self._index + step, self._fresh_memory()
        return goal


class RandomReach:
    """Explores: reaches for random points (a share of them on objects), opens and closes the hand, nudges objects."""

    def __init__(self, *, generator: np.random.Generator, object_share: float = 0.5) -> None:
        self._generator, self._object_share = generator, object_share
        self._noise = ActionNoise(0.15, generator=generator)
        self._goal, self._left = None, 0

    def reset(self, env: gymnasium.Env) -> None:
        """Forget the last point; `env` has just been reset."""
        self._goal, self._left = None, 0
        self._noise.reset()

    def act(self, env: gymnasium.Env) -> NDArray[np.float32]:
        """The next action, float32[7]."""
        base = cast("TabletopEnv", env.unwrapped)
        if self._left == 0 or self._goal is None:
            self._goal, self._left = self._draw(base), int(self._generator.integers(6, 20))
        self._left -= 1
        action = action_toward(base.command, self._goal)
        action[:6] += self._noise.sample()
        return np.clip(action, -1, 1).astype(np.float32)

    def _draw(self, env: TabletopEnv) -> Goal:
        generator, things = self._generator, env.sim.targets()
        point = generator.uniform((0.40, -0.17, 0.015), (0.64, 0.17, 0.18))
        if generator.random() < self._object_share:
            point[:2] = things[generator.integers(len(things))][:2] + generator.normal(0, 0.015, 2)
            point[2] = generator.uniform(0.015, 0.05)
        gripper = generator.choice([-1.0, 1.0])
        return Goal(point, generator.uniform(-0.3, 0.3), gripper, speed=generator.uniform(0.4, 1.0))
