"""The tabletop environment: seven-number actions, a small camera picture, a sentence.

`TabletopEnv` is one Gymnasium environment class for every task of `tasks.py`; its docstring
is the specification.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from worldrl_envs.control import ACTION_SIZE, PANDA, Embodiment, check_action, home_command, next_command
from worldrl_envs.errors import OptionError, check_name
from worldrl_envs.layouts import sample_layout
from worldrl_envs.observations import pixels_space, proprioception, state_space, state_vector
from worldrl_envs.rendering import MAX_SIZE, Camera
from worldrl_envs.simulation import Simulation
from worldrl_envs.starts import load_placement, start_generator
from worldrl_envs.style import Look, Style, get_style
from worldrl_envs.tasks import TaskSpec, get_task

OBS = ("pixels", "state")
CAMERAS = ("scene", "wrist")
INSTRUCTIONS = ("canonical", "paraphrase", "held_out")
OPTIONS = ("init_id", "index", "state", "instruction", "paraphrase")
STARTS = ("init_id", "index", "state")  # at most one of them
NOT_STORED = -1  # info["init_id"] of an episode that did not start from a stored state
RENDER_SIZE = 384  # pixels, of `render()`


class TabletopEnv(gymnasium.Env[Any, NDArray[np.float32]], EzPickle):
    """A Panda-like arm at a table, 20 control steps per second.

    ## Action, float32[7] in [-1, 1]
    Change of position (3, times 0.02 m), change of rotation (3, axis-angle, times 0.1 rad,
    world frame), gripper (-1 open, +1 closed; its sign moves the fingers). Values more than
    1e-6 outside [-1, 1], or not finite, raise `ActionError` and change nothing.

    ## Observation
    `obs="pixels"`, a Dict: `image` uint8[Y, X, 3] (scene camera, facing the robot), with
    `cameras=("scene", "wrist")` also `wrist_image`; `state` float32[8] (tool position, axis-angle,
    finger positions, as LIBERO); `command` float32[7] (the commanded pose, see `control.py`);
    `instruction`, text. `obs="state"`, a Box: see `observations.state_vector`.

    ## Reward, termination, truncation
    Reward is 1 on a frame where the task is solved, else 0. `terminated` is set with it, unless
    `terminate_on_success=False`. Truncation is Gymnasium's TimeLimit, which `gymnasium.make`
    adds with the task's horizon (`env.spec.max_episode_steps`); the bare class never truncates.
    TimeLimit counts from `reset`, so restore mid-episode states by `reset(options={"state": s})`.

    ## info
    `is_success` bool; `stage` int, how many of the task's stages are met; `task`, `instruction`;
    `init_id` int, -1 unless the episode started from a stored state (an int and not None, because
    vector environments stack it); `contact` bool, a finger touches an object or the drawer;
    `step` int, control steps since the episode began, kept by get_state and set_state;
    `privileged`, the float64[7] pose of every object and fixture.

    ## reset options
    At most one of `init_id` (a stored state, 0 to 49), `index` (with `seed`: the start depends on
    (task, index, seed) alone) and `state` (from `get_state`). `instruction` sets the sentence,
    `paraphrase` picks it by index from the task's paraphrases.

    ## Version history
    v0: first release.

    Args:
        task: Name of a task, see `worldrl_envs.task_names()`.
        obs: "pixels" or "state".
        image_size: Height and width of the pictures, pixels.
        cameras: "scene", "wrist", or both.
        style: A `Style`, the name of a preset, or None for the default look.
        terminate_on_success: Whether success ends the episode.
        instruction: "canonical"; "paraphrase" or "held_out" draw one per episode from the seed.
        render_mode: "rgb_array" or None.

    Raises:
        UnknownNameError: an unknown name among the arguments; names the nearest.
        ValueError: the image size is not in 8..512.
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["rgb_array"],
        "render_fps": PANDA.control_hz,
    }

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
        _check_arguments(obs, image_size, cameras, instruction, render_mode)
        self.task: TaskSpec = get_task(task)
        self.obs, self.cameras, self.render_mode = obs, tuple(cameras), render_mode
        self.terminate_on_success, self.instruction_mode = terminate_on_success, instruction
        self.sim = Simulation(self.task.objects, self.task.fixtures)
        self._look = Look(self.sim.model)
        self.set_style(style)
        self._camera, self._large_camera = Camera(self.sim.model, image_size), Camera(self.sim.model, RENDER_SIZE)
        self.action_space = gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)
        pixels = obs == "pixels"
        self.observation_space = pixels_space(image_size, self.cameras) if pixels else state_space(self.sim)
        self._command = home_command()
        self._step, self._stage, self._init_id = 0, 0, NOT_STORED
        self._instruction = self.task.instruction
        self._started = False

    @property
    def embodiment(self) -> Embodiment:
        """Scales and limits of the action, for whoever integrates the commanded pose too."""
        return PANDA

    @property
    def command(self) -> NDArray[np.float32]:
        """The commanded pose, float32[7]; a copy."""
        return self._command.copy()

    @property
    def stage(self) -> int:
        """How many of the task's stages have been met."""
        return self._stage

    def set_style(self, style: Style | str | None) -> None:
        """Change the look, from the next picture after a reset or a step on."""
        self.style = get_style(style)
        self._look.apply(self.style)

    # --- Gymnasium ---

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see the class for `options`.

        Raises:
            UnknownNameError: an unknown option; names the nearest.
            OptionError: an option's value cannot be used.
        """
        options = _check_options(options or {}, seed, len(self.task.paraphrases))
        super().reset(seed=seed)
        if "state" in options:
            self.set_state(options["state"])
        else:
            self._start(options, seed)
        self._started = True
        return self._observe(), self._info()

    def _start(self, options: dict[str, Any], seed: int | None) -> None:
        if "index" in options and seed is not None:
            generator = start_generator(self.task.name, options["index"], seed)
        else:
            generator = self.np_random
        self._init_id = int(options.get("init_id", NOT_STORED))
        if "init_id" in options:
            self.sim.restore(load_placement(self.task.name, self._init_id, self.sim))
        else:
            self.sim.place(sample_layout(self.task.layout, generator=generator))
        self._instruction = self._choose_instruction(options, generator)
        self._command, self._step, self._stage = home_command(), 0, 0

    def _choose_instruction(self, options: dict[str, Any], generator: np.random.Generator) -> str:
        if "instruction" in options:
            return options["instruction"]
        if "paraphrase" in options:
            return self.task.paraphrases[options["paraphrase"]]
        if self.instruction_mode == "canonical":
            return self.task.instruction
        phrases = self.task.phrases
        choices = phrases.train if self.instruction_mode == "paraphrase" else phrases.held_out
        return choices[generator.integers(len(choices))]

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step of 0.05 s.

        Raises:
            ActionError: the action is not seven finite floats in [-1, 1]; nothing has changed.
            ResetNeeded: no episode was started.
        """
        if not self._started:
            raise gymnasium.error.ResetNeeded("step: call reset first")
        self._command = next_command(self._command, check_action(action))
        self.sim.advance(self._command)
        self._step += 1
        success = self._advance_stage()
        terminated = success and self.terminate_on_success
        return self._observe(), float(success), terminated, False, self._info(success)

    def _advance_stage(self) -> bool:
        """Count the stages met; success is the last one holding at this very frame."""
        stages = self.task.stages
        self._stage = min(self._stage, len(stages) - 1)
        if not stages[self._stage](self.sim):
            return False
        self._stage += 1
        return self._stage == len(stages)

    def render(self) -> NDArray[np.uint8] | None:
        """Scene camera, uint8[384, 384, 3]; None without `render_mode="rgb_array"`."""
        return self._large_camera.draw(self.sim.data, "scene") if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Free the OpenGL contexts."""
        self._camera.close()
        self._large_camera.close()

    # --- state ---

    def get_state(self) -> dict[str, Any]:
        """Everything the future depends on; stepping after `set_state` gives the same bits."""
        return self.sim.get_state() | {
            "task": self.task.name,
            "command": self._command.copy(),
            "step": self._step,
            "stage": self._stage,
            "init_id": self._init_id,
            "instruction": self._instruction,
            "rng": self.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore `get_state()`.

        Raises:
            OptionError: the state was taken in another task.
        """
        if state["task"] != self.task.name:
            raise OptionError(f"state['task']: must be {self.task.name!r}, received {state['task']!r}")
        self.sim.set_state(state)
        self._command = state["command"].copy()
        self._step, self._stage, self._init_id = state["step"], state["stage"], state["init_id"]
        self._instruction = state["instruction"]
        self.np_random.bit_generator.state = state["rng"]
        self._started = True

    # --- reading ---

    def _observe(self) -> Any:
        if self.obs == "state":
            return state_vector(self.sim, self._command)
        keys = {"scene": "image", "wrist": "wrist_image"}
        return {keys[camera]: self._camera.draw(self.sim.data, camera) for camera in self.cameras} | {
            "state": proprioception(self.sim),
            "command": self._command.copy(),
            "instruction": self._instruction,
        }

    def _info(self, success: bool = False) -> dict[str, Any]:
        return {
            "is_success": success,
            "stage": self._stage,
            "task": self.task.name,
            "init_id": self._init_id,
            "instruction": self._instruction,
            "contact": self.sim.contact(),
            "step": self._step,
            "privileged": self.sim.poses(),
        }


def _check_arguments(obs, image_size, cameras, instruction, render_mode) -> None:
    check_name("obs", obs, OBS)
    check_name("instruction", instruction, INSTRUCTIONS)
    for camera in cameras:
        check_name("cameras", camera, CAMERAS)
    if render_mode is not None:
        check_name("render_mode", render_mode, TabletopEnv.metadata["render_modes"])
    if not 8 <= image_size <= MAX_SIZE:
        raise ValueError(f"image_size: must be in 8..{MAX_SIZE} pixels, received {image_size}")


def _check_options(options: dict[str, Any], seed: int | None, n_paraphrases: int) -> dict[str, Any]:
    for key in options:
        check_name("options", key, OPTIONS)
    starts = [key for key in STARTS if key in options]
    if len(starts) > 1:
        raise OptionError(f"options: at most one of {STARTS} may be given, received {starts}")
    if "index" in options and seed is None:
        raise OptionError("options['index']: needs a seed too, as in reset(seed=0, options={'index': 3})")
    if not 0 <= options.get("paraphrase", 0) < n_paraphrases:
        raise OptionError(f"options['paraphrase']: must be in 0..{n_paraphrases - 1}, received {options['paraphrase']}")
    return options
