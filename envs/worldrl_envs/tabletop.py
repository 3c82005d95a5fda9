"""The tabletop environment; the docstring of `TabletopEnv` is the specification."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from worldrl_envs import control
from worldrl_envs.arrangements import Arrangement
from worldrl_envs.base import TaskEnv
from worldrl_envs.control import ACTION_SIZE, GRIPPER_INDEX, PANDA, Embodiment
from worldrl_envs.observations import PROPRIO_SIZE, command_space, proprioception, state_space, state_vector
from worldrl_envs.simulation import Simulation
from worldrl_envs.style import Look, Style
from worldrl_envs.tasks import get_task


class TabletopEnv(TaskEnv):
    """A Panda-like arm at a table, 20 control steps per second.

    ## Action, float32[7] in [-1, 1]
    Change of position (3, times 0.02 m), change of rotation (3, axis-angle, times 0.1 rad, world frame), gripper (-1 open,
    +1 closed; its sign moves the fingers). Values more than 1e-6 outside [-1, 1], or not finite, raise `ActionError` and
    change nothing.

    ## Observation
    `obs="pixels"`, a Dict: `image` uint8[Y, X, 3] (scene camera, facing the robot), with `cameras=("scene", "wrist")` also
    `wrist_image`; `state` float32[8] (tool position, axis-angle, finger positions, as LIBERO); `command` float32[7] (the
    commanded pose, see `control.py`); `instruction`, text. `obs="state"`, a Box: see `observations.state_vector`.

    ## Reward, termination, truncation
    Reward is 1 on a frame where the task is solved, else 0. `terminated` is set with it, unless
    `terminate_on_success=False`. Truncation is Gymnasium's TimeLimit, which `gymnasium.make` adds with the task's horizon;
    the bare class never truncates. TimeLimit counts from `reset`, so restore mid-episode states by
    `reset(options={"state": s})`.

    ## info
    `is_success` bool; `stage` int, how many of the task's stages are met; `task`, `instruction`; `init_id` int, -1 unless
    the episode started from a stored state (vector environments stack it); `contact` bool, a finger touches an object or
    the drawer; `step` int, control steps since the episode began; `privileged`, float64[7] poses of objects and fixtures.

    ## Arguments and reset options
    `instruction="paraphrase"` or `"held_out"` draws one per episode from the seed. At most one option of `init_id` (a
    stored state, 0 to 49), `index` (with `seed`: the start depends on (task, index, seed) alone) and `state` (from
    `get_state`). `instruction` sets the words, `paraphrase` picks it by index. Other names, types and values raise
    `OptionError` or `UnknownNameError`, and change nothing.

    ## Learners
    Stable-Baselines3 knows no text: give it `obs="state"`, or leave the instruction out of the Dict by
    `gymnasium.wrappers.FilterObservation(env, ["image", "state", "command"])` and take `MultiInputPolicy`.
    `gymnasium.make_vec(..., vectorization_mode="async")` shows each row's instruction. Once this process has drawn, it
    needs `vector_kwargs={"context": "spawn"}`. Version history: v0, first release.
    """

    CONTROL = control
    IMAGES: ClassVar[dict[str, str]] = {"scene": "image", "wrist": "wrist_image"}

    def __init__(
        self,
        task: str,
        obs: str = "pixels",
        image_size: int = 64,
        cameras: tuple[str, ...] = ("scene",),
        style: Style | str | None = None,
        terminate_on_success: bool = True,
        instruction: str = "canonical",
        render_mode: str | None = None,
    ) -> None:
        EzPickle.__init__(self, task, obs, image_size, cameras, style, terminate_on_success, instruction, render_mode)
        spec = get_task(task)
        self.sim = Simulation(spec.objects, spec.fixtures)
        look = Look(self.sim.model)
        super().__init__(
            spec, self.sim, look, obs, image_size, cameras, style, terminate_on_success, instruction, render_mode
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)
        pixels = self._pixels_space(image_size, PROPRIO_SIZE, command_space())
        self.observation_space = pixels if obs == "pixels" else state_space(self.sim)

    @property
    def embodiment(self) -> Embodiment:
        """Scales and limits of the action, for whoever integrates the commanded pose too."""
        return PANDA

    def arrange(self, arrangement: Arrangement) -> tuple[Any, dict[str, Any]]:
        """Show a scene that no episode led to; observation and info as of `reset`. The next `step` begins in it."""
        self.sim.arrange(arrangement)
        self._command = arrangement.command.copy()
        return self._observe(), self._info()

    def hold_action(self) -> NDArray[np.float32]:
        """No motion, the gripper as commanded, float32[7]."""
        return np.array([0, 0, 0, 0, 0, 0, self._command[GRIPPER_INDEX]], np.float32)

    def _proprioception(self) -> NDArray[np.float32]:
        return proprioception(self.sim)

    def _vector(self) -> NDArray[np.float32]:
        return state_vector(self.sim, self._command)
