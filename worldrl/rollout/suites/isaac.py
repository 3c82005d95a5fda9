"""How an Isaac Lab worker is started, and ``worldrl/Isaac-v0``: one task's many environments in one process.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.isaac

    env = gymnasium.make_vec("worldrl/Isaac-v0", num_envs=256, suite="isaac_lift")

Physics on a GPU does not repeat itself bit for bit, so a lost worker's episodes cannot be played again: its loss is an
error, and a benchmark that is started again goes on with the episodes it has not finished. Never run against the real Isaac
Lab; see ``workers/isaac.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.rollout.suites.env import SuiteVecEnv, register_vector
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch
from worldrl.workers.isaac import facts

ENV_ID = "worldrl/Isaac-v0"
TARGET = "worldrl.workers.isaac.worker:Isaac"


def isaac_launch(
    suite: str, *, num_envs: int, cameras: Sequence[str] = (), image_size: int = 84, device: str = "cuda:0"
) -> Launch:
    """Say how an Isaac Lab worker is started.

    Args:
        suite: a name of :data:`~worldrl.workers.isaac.facts.SUITES`.
        num_envs: environments that the process holds.
        cameras: ``scene`` and ``wrist``, of tasks with pictures; empty draws nothing.
        image_size: pixels of the square pictures.
        device: where Isaac's physics runs.

    Raises:
        SettingError: unknown suite or camera, or a task without pictures is asked for some.
        WorkerEnvironmentError: not set up.
    """
    if suite not in facts.SUITES:
        raise SettingError(f"suite: unknown value {suite!r}{nearest(suite, facts.SUITES)}")
    for camera in cameras:
        if camera not in facts.CAMERAS:
            raise SettingError(f"cameras: unknown camera {camera!r}{nearest(camera, facts.CAMERAS)}")
    if cameras and not facts.SUITES[suite].pictures:
        seen = ", ".join(name for name, task in facts.SUITES.items() if task.pictures)
        raise SettingError(f"cameras: {suite} has none; with images there is {seen}")
    options = {
        "suite": suite,
        "num_envs": num_envs,
        "cameras": list(cameras),
        "image_size": image_size,
        "device": device,
    }
    return Launch(suite, find_environment("isaac").python, TARGET, options)


def make_vec(
    *,
    num_envs: int,
    suite: str = "isaac_lift",
    cameras: Sequence[str] = (),
    image_size: int = 84,
    device: str = "cuda:0",
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/Isaac-v0``.

    Args:
        num_envs: environments, all in one process.
        suite: see :func:`isaac_launch`.
        cameras: see :func:`isaac_launch`.
        image_size: see :func:`isaac_launch`.
        device: see :func:`isaac_launch`.
        **settings: any other of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
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
