"""How a ManiSkill worker is started, and ``worldrl/ManiSkill-v0``: its tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.maniskill

    env = gymnasium.make_vec("worldrl/ManiSkill-v0", num_envs=4, suite="maniskill_cubes", workers=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
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
