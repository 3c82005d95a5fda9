"""How a RoboTwin worker is started, and ``worldrl/RoboTwin-v0``: a checkout's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.robotwin

    env = gymnasium.make_vec("worldrl/RoboTwin-v0", num_envs=2, suite="robotwin_clean")

Never run against the real RoboTwin; see ``workers/robotwin``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.simulators.environments import cache_dir, find_environment
from worldrl.simulators.process import Launch
from worldrl.workers.robotwin import facts

ENV_ID = "worldrl/RoboTwin-v0"
TARGET = "worldrl.workers.robotwin.worker:RoboTwin"


def robotwin_launch(suite: str, *, cameras: Sequence[str] = ("head",), image_size: int = 0) -> Launch:
    """Return how a RoboTwin worker of ``robotwin_clean`` or ``robotwin_randomised`` is started.

    ``cameras`` are of ``head``, ``left_wrist``, ``right_wrist``, the head camera first; empty renders nothing.
    ``image_size`` is the side of square images (pixels); 0 is RoboTwin's own size, 240 by 320. Raises SettingError
    (unknown suite or camera). Raises WorkerEnvironmentError (not set up).
    """
    check_names(suite, facts.CONFIGS, cameras, facts.CAMERAS)
    environment = find_environment("robotwin")
    options = {
        "suite": suite,
        "checkout": str(environment.record["checkout"]),
        "seeds": str(cache_dir() / "robotwin_seeds"),
        "cameras": list(cameras),
        "image_size": image_size,
    }
    return Launch(suite, environment.python, TARGET, options)


def make_vec(
    *,
    num_envs: int,
    suite: str = "robotwin_clean",
    cameras: Sequence[str] = tuple(facts.CAMERAS),
    image_size: int = 0,
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/RoboTwin-v0``, one process per environment, with the settings of :func:`robotwin_launch`.

    The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    return SuiteVecEnv(
        robotwin_launch(suite, cameras=cameras, image_size=image_size),
        num_envs=num_envs,
        workers=num_envs,
        horizon=facts.DEFAULT_STEPS,
        cameras=tuple(cameras),
        image_size=image_size,
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.robotwin:make_vec")
