"""The bimanual environment; the docstring of `BimanualEnv` is the specification."""

from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from worldrl_envs.base import TaskEnv
from worldrl_envs.bimanual import control
from worldrl_envs.bimanual.control import ACTION_SIZE, SIXAXIS_PAIR, JointEmbodiment
from worldrl_envs.bimanual.observations import joint_space, state_space, state_vector
from worldrl_envs.bimanual.simulation import BimanualSimulation
from worldrl_envs.errors import OptionError, check_name
from worldrl_envs.style import Look, Style, sample_style
from worldrl_envs.tasks import get_task

DOMAINS = ("clean", "randomised")
TABLE_DROP = 0.03  # metres by which a randomised table may be lower, as in RoboTwin


class BimanualEnv(TaskEnv):
    """Two six-joint arms with parallel grippers at one table, 20 control steps per second.

    ## Action, float32[14]
    Absolute joint targets as in RoboTwin: left joints 1 to 6 (rad), left gripper (0 closed, 1 open), then the right
    arm's. The action space's bounds are the joint limits; values more than 1e-6 outside, or not finite, raise
    `ActionError` and change nothing. The servos follow no faster than the joints may turn (`JointEmbodiment`).
    Learners that want [-1, 1] wrap it: `gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))`.

    ## Observation
    `obs="pixels"`, a Dict: `image` uint8[Y, X, 3] (head camera; the left arm is on the left), and with
    `cameras=("head", "left_wrist", "right_wrist")` also `left_wrist_image` and `right_wrist_image`; `state`
    float32[14] (measured joints and grippers, in the action's order and units); `command` float32[14] (the targets the
    servos have, see `control.py`); `instruction`, text. `obs="state"`, a Box: see `observations.state_vector`.

    ## Domain
    `domain="randomised"` draws for each episode, as RoboTwin does: light, colours and texture of the table, clutter, the
    camera's place and the height of the table (up to 3 cm lower). The layout is that of the clean domain. A `style` is of
    the clean domain only.

    ## Everything else
    As of `TabletopEnv`. Version history: v0, first release.
    """

    CONTROL = control
    IMAGES: ClassVar[dict[str, str]] = {
        "head": "image",
        "left_wrist": "left_wrist_image",
        "right_wrist": "right_wrist_image",
    }

    def __init__(
        self,
        task: str,
        obs: str = "pixels",
        image_size: int = 64,
        cameras: tuple[str, ...] = ("head",),
        style: Style | str | None = None,
        terminate_on_success: bool = True,
        instruction: str = "canonical",
        domain: str = "clean",
        render_mode: str | None = None,
    ) -> None:
        EzPickle.__init__(
            self, task, obs, image_size, cameras, style, terminate_on_success, instruction, domain, render_mode
        )
        check_name("domain", domain, DOMAINS)
        if domain == "randomised" and style is not None:
            raise OptionError("style: the randomised domain draws its own; leave style out, or take domain='clean'")
        spec = get_task(task)
        self.sim = BimanualSimulation(spec.objects, spec.fixtures)
        self.domain, self._domain_seed = domain, 0
        look = Look(self.sim.model, "head", _prop_place)
        super().__init__(
            spec, self.sim, look, obs, image_size, cameras, style, terminate_on_success, instruction, render_mode
        )
        self.action_space = joint_space()
        pixels = self._pixels_space(image_size, ACTION_SIZE, joint_space())
        self.observation_space = pixels if obs == "pixels" else state_space(self.sim)

    @property
    def embodiment(self) -> JointEmbodiment:
        """Limits of the joint targets, for whoever integrates the command too."""
        return SIXAXIS_PAIR

    def hold_action(self) -> NDArray[np.float32]:
        """The command itself, float32[14]."""
        return self.command

    def _proprioception(self) -> NDArray[np.float32]:
        return self.sim.joints.astype(np.float32)

    def _vector(self) -> NDArray[np.float32]:
        return state_vector(self.sim, self._command)

    # --- domain ---

    def _begin(self, generator: np.random.Generator) -> None:
        # Drawn in the clean domain too, so that both domains have the same layouts, episode after episode.
        self._domain_seed = int(generator.integers(2**31))
        self.sim.lower_table(self._dress())

    def _dress(self) -> float:
        """Paint the scene as the episode's domain has it; return how far its table is lowered, metres."""
        if self.domain == "clean":
            self._look.apply(self.style)
            return 0.0
        generator = np.random.default_rng(self._domain_seed)
        style, drop = sample_style(generator=generator), float(generator.uniform(0, TABLE_DROP))
        self._look.apply(style, -drop)
        return drop

    def get_state(self) -> dict[str, Any]:
        """Everything the future depends on; stepping after `set_state` gives the same bits."""
        return super().get_state() | {"domain": self.domain, "domain_seed": self._domain_seed}

    def _prepare(self, state: dict[str, Any]) -> None:
        self._domain_seed = state["domain_seed"]
        self.sim.set_table(-self._dress())


def _prop_place(generator: np.random.Generator) -> tuple[float, float]:
    """Beyond the working area or at its sides, in the image."""
    if generator.random() < 0.5:
        return generator.uniform(0.50, 0.58), generator.uniform(-0.20, 0.20)
    return generator.uniform(0.34, 0.48), generator.choice([-1, 1]) * generator.uniform(0.225, 0.25)
