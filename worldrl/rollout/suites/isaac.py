"""How an Isaac Lab worker is started, and ``worldrl/Isaac-v0``: one task's many environments in one process.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.isaac

    env = gymnasium.make_vec("worldrl/Isaac-v0", num_envs=256, suite="isaac_lift")

Physics on a GPU is not deterministic, so a lost worker's episodes cannot be played again: its loss is an error, and a
benchmark that is started again runs its unfinished episodes. Never run against the real Isaac Lab; see
``workers/isaac``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError
from worldrl.rollout.agents.vector_agent import UNKNOWN_SIZE
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
from worldrl.workers.isaac import facts

ENV_ID = "worldrl/Isaac-v0"
TARGET = "worldrl.workers.isaac.worker:Isaac"


def isaac_launch(
    suite: str, *, num_envs: int, cameras: Sequence[str] = (), image_size: int = 84, device: str = "cuda:0"
) -> Launch:
    """Return how an Isaac Lab worker is started.

    ``suite`` is a name of :data:`~worldrl.workers.isaac.facts.SUITES`. ``cameras`` are ``scene`` and ``wrist``, of
    tasks with images; empty renders nothing. ``device`` is that of Isaac's physics, ``image_size`` the side of the
    images (pixels). Raises SettingError (unknown suite or camera, or cameras for a task without images). Raises
    WorkerEnvironmentError (not set up).
    """
    check_names(suite, facts.SUITES, cameras, facts.CAMERAS)
    if cameras and not facts.SUITES[suite].images:
        others = ", ".join(name for name, task in facts.SUITES.items() if task.images)
        raise SettingError(f"cameras: {suite} has none; with images there is {others}")
    options = {"suite": suite, "num_envs": num_envs, "cameras": list(cameras), "image_size": image_size}
    return Launch(suite, find_environment("isaac").python, TARGET, {**options, "device": device})


class IsaacSuite(Suite):
    """One task of Isaac Lab; those with images can be recorded."""

    family = "isaac"
    stored_states = facts.STORED_STATES

    def __init__(self, name: str) -> None:
        super().__init__(name)
        cameras = tuple(facts.CAMERAS) if facts.SUITES[name].images else ()
        self.spec = SuiteSpec(TOOL_ACTIONS, cameras, vector=UNKNOWN_SIZE)
        self.embodiment = Embodiment(
            position_scale=facts.POSITION_SCALE,
            rotation_scale=facts.ROTATION_SCALE,
            workspace_low=facts.WORKSPACE_LOW,
            workspace_high=facts.WORKSPACE_HIGH,
            max_rotation=math.pi,
            control_hz=facts.SUITES[name].control_hz,
        )

    def tasks(self) -> tuple[str, ...]:
        """One."""
        return (facts.SUITES[self.name].id,)

    def horizon(self, task: str) -> int:
        """The task's limit."""
        return facts.SUITES[self.name].horizon

    def worker_config(self, asked: Workers) -> WorkerConfig:
        """All environments in one process, whose lost episodes cannot be played again."""
        launch = isaac_launch(self.name, num_envs=asked.slots, cameras=asked.cameras, image_size=asked.image_size)
        return WorkerConfig(launch, 1, asked.slots, 0, None)

    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """Actions, state, draws and the rule of success."""
        scales = f"1 = {facts.POSITION_SCALE} m and {facts.ROTATION_SCALE} rad"
        return str(described["packages"]["isaaclab"]), {
            "action": f"delta pose from the measured one, {scales}; gripper -1 open, +1 closed",
            "state": "position in the environment's frame, axis-angle, two fingers",
            "initial_state": "seed = hash of task, number and seed; one environment at a time",
            "success": str(described["success"]),
            "observation_noise": False,
        }

    def meaning(self, control_hz: float) -> dict[str, Any]:
        """Changes of the measured pose in the robot's frame."""
        return tool_meaning(facts.POSITION_SCALE, facts.ROTATION_SCALE, control_hz, (BASE, MEASURED, UPRIGHT))


def make_vec(
    *,
    num_envs: int,
    suite: str = "isaac_lift",
    cameras: Sequence[str] = (),
    image_size: int = 84,
    device: str = "cuda:0",
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/Isaac-v0`` with the settings of :func:`isaac_launch`.

    The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    launch = isaac_launch(suite, num_envs=num_envs, cameras=cameras, image_size=image_size, device=device)
    return SuiteVecEnv(
        launch,
        num_envs=num_envs,
        workers=1,
        horizon=facts.SUITES[suite].horizon,
        cameras=tuple(cameras),
        image_size=image_size,
        recycle_after=None,
        restarts=0,
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.isaac:make_vec")
