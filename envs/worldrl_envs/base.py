"""What the environments of both suites share: reset, options, stages, state, images."""

from abc import abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from worldrl_envs.control import PANDA
from worldrl_envs.errors import check_name
from worldrl_envs.instruction_space import InstructionSpace
from worldrl_envs.layouts import sample_layout
from worldrl_envs.options import check_options, check_seed, check_state, whole_number
from worldrl_envs.physics import Physics
from worldrl_envs.rendering import MAX_SIZE, MIN_SIZE, Camera
from worldrl_envs.starts import load_placement, start_generator
from worldrl_envs.style import Look, Style, get_style
from worldrl_envs.task_spec import TaskSpec

BOUND = 10.0  # metres and radians; far beyond the table, so that every space is finite
OBS = ("pixels", "state")
INSTRUCTIONS = ("canonical", "paraphrase", "held_out")
NOT_STORED = -1  # info["init_id"] of an episode that did not start from a stored state
RENDER_SIZE = 384  # pixels, of `render()`


class TaskEnv(gymnasium.Env[Any, NDArray[np.float32]], EzPickle):
    """One task in its simulation; see the subclasses. UnknownNameError or OptionError for other arguments."""

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["rgb_array"],
        "render_fps": PANDA.control_hz,
    }
    CONTROL: ClassVar[ModuleType]  # The suite's `home_command`, `check_action` and `next_command`
    IMAGES: ClassVar[dict[str, str]]  # Camera to observation key; the first camera is the one that `render` shows

    def __init__(
        self,
        task: TaskSpec,
        sim: Physics,
        look: Look,
        obs: str,
        image_size: int,
        cameras: tuple[str, ...],
        style: Style | str | None,
        terminate_on_success: bool,
        instruction: str,
        render_mode: str | None,
    ) -> None:
        self._check_arguments(obs, image_size, cameras, instruction, render_mode)
        self.task, self._physics, self._look = task, sim, look
        self.obs, self.cameras, self.render_mode = obs, tuple(cameras), render_mode
        self.terminate_on_success, self.instruction_mode = terminate_on_success, instruction
        self.set_style(style)
        self._camera, self._large_camera = Camera(sim.model, image_size), Camera(sim.model, RENDER_SIZE)
        self._command = self.CONTROL.home_command()
        self._step, self._stage, self._init_id = 0, 0, NOT_STORED
        self._instruction = self.task.instruction
        self._started = False

    # --- what a suite brings ---

    @abstractmethod
    def _proprioception(self) -> NDArray[np.float32]:
        """The robot's measured state, for `obs="pixels"`."""

    @abstractmethod
    def _vector(self) -> NDArray[np.float32]:
        """The whole observation of `obs="state"`."""

    @abstractmethod
    def hold_action(self) -> NDArray[np.float32]:
        """The action under which the command stays as it is."""

    def _begin(self, generator: np.random.Generator) -> None:
        """What else an episode draws, after its layout and its instruction; nothing by default."""

    @property
    def command(self) -> NDArray[np.float32]:
        """What the robot is commanded to be now: a pose, float32[7], or joint targets, float32[14]; a copy."""
        return self._command.copy()

    @property
    def stage(self) -> int:
        """How many of the task's stages have been met."""
        return self._stage

    def set_style(self, style: Style | str | None) -> None:
        """Change the look, from the next image after a reset or a step on."""
        self.style = get_style(style)
        self._look.apply(self.style)

    def _prepare(self, state: dict[str, Any]) -> None:
        """What to set up before the physics of a saved state is restored; nothing by default."""

    # --- Gymnasium ---

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see the class for `options`. UnknownNameError or OptionError, with nothing changed."""
        seed = check_seed(seed)
        options = check_options(options, seed, self.task)
        if "state" in options:
            options["state"] = check_state(options["state"], self.get_state(), self.task)
        super().reset(seed=seed)
        if "state" in options:
            self._restore(options["state"])
        else:
            self._start(options, seed)
        self._started = True
        return self._observe(), self._info()

    def _start(self, options: dict[str, Any], seed: int | None) -> None:
        if "index" in options and seed is not None:
            generator = start_generator(self.task.name, options["index"], seed)
        else:
            generator = self.np_random
        self._init_id = options.get("init_id", NOT_STORED)
        if "init_id" in options:
            self._physics.restore(load_placement(self.task.name, self._init_id, self._physics))
        else:
            self._physics.place(sample_layout(self.task.layout, generator=generator))
        self._instruction = self._choose_instruction(options, generator)
        self._command, self._step, self._stage = self.CONTROL.home_command(), 0, 0
        self._begin(generator)

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
        """One control step of 0.05 s; ActionError, with nothing changed, or ResetNeeded before the first reset."""
        if not self._started:
            raise gymnasium.error.ResetNeeded("step: call reset first")
        self._command = self.CONTROL.next_command(self._command, self.CONTROL.check_action(action))
        self._physics.advance(self._command)
        self._step += 1
        success = self._advance_stage()
        terminated = success and self.terminate_on_success
        return self._observe(), float(success), terminated, False, self._info(success)

    def _advance_stage(self) -> bool:
        """Count the stages met; success is the last one holding at this very frame."""
        stages = self.task.stages
        self._stage = min(self._stage, len(stages) - 1)
        if not stages[self._stage](self._physics):
            return False
        self._stage += 1
        return self._stage == len(stages)

    def render(self) -> NDArray[np.uint8] | None:
        """The main camera, uint8[384, 384, 3]; None without `render_mode="rgb_array"`."""
        main = next(iter(self.IMAGES))
        return self._large_camera.draw(self._physics.data, main) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Free the OpenGL contexts."""
        self._camera.close()
        self._large_camera.close()

    # --- state ---

    def get_state(self) -> dict[str, Any]:
        """Everything the future depends on; stepping after `set_state` gives the same bits."""
        return self._physics.get_state() | {
            "task": self.task.name,
            "command": self._command.copy(),
            "step": self._step,
            "stage": self._stage,
            "init_id": self._init_id,
            "instruction": self._instruction,
            "rng": self.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore `get_state()`; OptionError, with nothing changed, for a state of another task or domain."""
        self._restore(check_state(state, self.get_state(), self.task))

    def _restore(self, state: dict[str, Any]) -> None:
        self._prepare(state)
        self._physics.set_state(state)
        self._command = state["command"].copy()
        self._step, self._stage, self._init_id = state["step"], state["stage"], state["init_id"]
        self._instruction = state["instruction"]
        self.np_random.bit_generator.state = state["rng"]
        self._started = True

    # --- reading ---

    def _observe(self) -> Any:
        if self.obs == "state":
            return self._vector()
        return {self.IMAGES[camera]: self._camera.draw(self._physics.data, camera) for camera in self.cameras} | {
            "state": self._proprioception(),
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
            "contact": self._physics.contact(),
            "step": self._step,
            "privileged": self._physics.poses(),
        }

    def _pixels_space(self, image_size: int, state_size: int, command: spaces.Box) -> spaces.Dict:
        """Images by their keys, proprioception, command and instruction."""
        picture = (image_size, image_size, 3)
        parts: dict[str, spaces.Space[Any]] = {
            self.IMAGES[camera]: spaces.Box(0, 255, picture, np.uint8) for camera in self.cameras
        }
        state = spaces.Box(-BOUND, BOUND, (state_size,), np.float32)
        return spaces.Dict(parts | {"state": state, "command": command, "instruction": InstructionSpace()})

    def _check_arguments(self, obs, image_size, cameras, instruction, render_mode) -> None:
        check_name("obs", obs, OBS)
        check_name("instruction", instruction, INSTRUCTIONS)
        for camera in cameras:
            check_name("cameras", camera, self.IMAGES)
        if render_mode is not None:
            check_name("render_mode", render_mode, self.metadata["render_modes"])
        whole_number("image_size", image_size, MIN_SIZE, MAX_SIZE)
