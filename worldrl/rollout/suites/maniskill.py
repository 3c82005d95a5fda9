"""How a ManiSkill worker is started, and ``worldrl/ManiSkill-v0``: its tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.maniskill

    env = gymnasium.make_vec("worldrl/ManiSkill-v0", num_envs=4, suite="maniskill_cubes", workers=2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.rollout.suites.suite import (
    BASE,
    MEASURED,
    UPRIGHT,
    Conventions,
    Suite,
    SuiteSpec,
    WorkerConfig,
    Workers,
    tool_meaning,
)
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch
from worldrl.workers.link.rendering import SAPIEN_DEVICE, SAPIEN_PROGRAM, choose_backend
from worldrl.workers.maniskill import facts

ENV_ID = "worldrl/ManiSkill-v0"
TARGET = "worldrl.workers.maniskill.worker:ManiSkill"
RENDER_TIMEOUT_S = 240.0
LONGEST = max(task.horizon for task in facts.TASKS.values())


def maniskill_launch(suite: str, *, cameras: Sequence[str] = ("scene",), image_size: int = 128) -> Launch:
    """Return how a ManiSkill worker is started.

    ``suite`` is a name of :data:`~worldrl.workers.maniskill.facts.SUITES`. ``cameras`` are ``scene``, or empty to
    render nothing; ``image_size`` is the side of the images (pixels). Raises SettingError (unknown suite or camera).
    Raises WorkerEnvironmentError (not set up, or Vulkan finds no device; SAPIEN needs one for every scene).
    """
    check_names(suite, facts.SUITES, cameras, facts.CAMERAS)
    environment = find_environment("maniskill")
    device = render_device(environment.python)
    options = {"suite": suite, "image_size": image_size, "cameras": list(cameras), "device": device}
    return Launch(suite, environment.python, TARGET, options)


class ManiSkillSuite(Suite):
    """Tasks of ManiSkill."""

    family = "maniskill"
    stored_states = facts.STORED_STATES
    spec = SuiteSpec(TOOL_ACTIONS, tuple(facts.CAMERAS))
    embodiment = Embodiment(
        position_scale=facts.POSITION_SCALE,
        rotation_scale=facts.ROTATION_SCALE,
        workspace_low=facts.WORKSPACE_LOW,
        workspace_high=facts.WORKSPACE_HIGH,
        max_rotation=math.pi,
        control_hz=facts.CONTROL_HZ,
    )

    def tasks(self) -> tuple[str, ...]:
        """As the suite lists them."""
        return facts.SUITES[self.name]

    def horizon(self, task: str) -> int:
        """As ManiSkill registers the task."""
        return facts.TASKS[task].horizon

    def worker_config(self, asked: Workers) -> WorkerConfig:
        """One environment per slot."""
        launch = maniskill_launch(self.name, cameras=asked.cameras, image_size=asked.image_size)
        return WorkerConfig(launch, asked.workers, asked.slots, asked.restarts, asked.recycle_after)

    def without_expert(self) -> tuple[str, ...]:
        """The expert moves cubes."""
        return tuple(name for name in self.tasks() if not facts.TASKS[name].expert)

    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """Actions, state, draws and devices."""
        scales = f"1 = {facts.POSITION_SCALE} m and {facts.ROTATION_SCALE} rad"
        return facts.VERSION, {
            "action": f"delta pose from the measured one, {scales}; gripper -1 open, +1 closed",
            "state": "position, axis-angle, two fingers",
            "initial_state": "seed = hash of task, number and seed",
            "physics": "PhysX on the CPU",
            "render": str(described["device"]),
        }

    def meaning(self, control_hz: float) -> dict[str, Any]:
        """Changes of the measured pose in the robot's frame."""
        return tool_meaning(facts.POSITION_SCALE, facts.ROTATION_SCALE, control_hz, (BASE, MEASURED, UPRIGHT))


@cache
def render_device(python: str | Path) -> str:
    """Choose where SAPIEN renders: the GPU, else Mesa's software Vulkan; WorkerEnvironmentError if neither works."""
    device, reasons = choose_backend(python, RENDER_TIMEOUT_S, facts.DEVICES, SAPIEN_PROGRAM, SAPIEN_DEVICE)
    if device is None:
        raise WorkerEnvironmentError(
            f"maniskill: Vulkan finds no device that SAPIEN can draw on ({'; '.join(reasons)}); without a GPU install "
            "Mesa 23 or newer: apt-get install -y libvulkan1 mesa-vulkan-drivers (on Debian 12 with -t "
            "bookworm-backports: its own 22.3 is too old)"
        )
    return device


def make_vec(
    *,
    num_envs: int,
    suite: str = "maniskill",
    cameras: Sequence[str] = ("scene",),
    image_size: int = 128,
    workers: int = 1,
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/ManiSkill-v0`` with the settings of :func:`maniskill_launch`.

    The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    return SuiteVecEnv(
        maniskill_launch(suite, cameras=cameras, image_size=image_size),
        num_envs=num_envs,
        workers=workers,
        horizon=LONGEST,
        cameras=tuple(cameras),
        image_size=image_size,
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.maniskill:make_vec")
