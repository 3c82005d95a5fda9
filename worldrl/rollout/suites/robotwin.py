"""How a RoboTwin worker is started, and ``worldrl/RoboTwin-v0``: a checkout's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.robotwin

    env = gymnasium.make_vec("worldrl/RoboTwin-v0", num_envs=2, suite="robotwin_clean")

Never run against the real RoboTwin; see ``workers/robotwin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.core.actions import suite_actions
from worldrl.core.image_fit import Fit, squares
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.rollout.suites.suite import (
    EMBODIMENT,
    JOINTS,
    Conventions,
    Suite,
    SuiteSpec,
    WorkerConfig,
    Workers,
)
from worldrl.simulators.environments import cache_dir, find_environment
from worldrl.simulators.process import Launch
from worldrl.workers.robotwin import facts

ENV_ID = "worldrl/RoboTwin-v0"
TARGET = "worldrl.workers.robotwin.worker:RoboTwin"


def robotwin_launch(suite: str, *, cameras: Sequence[str] = ("head",)) -> Launch:
    """Return how a RoboTwin worker of ``robotwin_clean`` or ``robotwin_randomised`` is started.

    ``cameras`` are of ``head``, ``left_wrist``, ``right_wrist``, the head camera first; empty renders nothing. Images are
    RoboTwin's own, 240 by 320. Raises SettingError (unknown suite or camera). Raises WorkerEnvironmentError (not set up).
    """
    check_names(suite, facts.CONFIGS, cameras, facts.CAMERAS)
    environment = find_environment("robotwin")
    options = {
        "suite": suite,
        "checkout": str(environment.record["checkout"]),
        "seeds": str(cache_dir() / "robotwin_seeds"),
        "cameras": list(cameras),
    }
    return Launch(suite, environment.python, TARGET, options)


class RoboTwinSuite(Suite):
    """A configuration of RoboTwin; the tasks and their limits are known to its workers only."""

    family = "robotwin"
    spec = SuiteSpec(suite_actions({"joints": facts.joints()}), tuple(facts.CAMERAS), facts.IMAGE)

    def tasks(self) -> tuple[str, ...]:
        """None before a worker runs."""
        return ()

    def horizon(self, task: str) -> int:
        """Of tasks without a limit of their own."""
        return facts.DEFAULT_STEPS

    def worker_config(self, asked: Workers) -> WorkerConfig:
        """One environment per process."""
        launch, images = robotwin_launch(self.name, cameras=asked.cameras), squares(asked.image_size, asked.fit)
        return WorkerConfig(launch, asked.workers, asked.workers, asked.restarts, asked.recycle_after, images)

    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """Actions, state, seeds and configuration."""
        return f"2.0@{described['packages']['robotwin'][:12]}", {
            "action": "14 absolute joint targets, grippers 0 closed, 1 open; one retimed motion each",
            "state": "14 joints and grippers",
            "initial_state": f"seeds from {facts.SEED_BLOCK} (1 + seed) on that the expert solved",
            "config": facts.CONFIGS[self.name],
            "success": "check_success at any physics step",
            "picture": f"{described['picture'][0]} by {described['picture'][1]} pixels"
            + (f", {described['fit']}" if described.get("fit", Fit.stretch) != Fit.stretch else ""),
        }

    def meaning(self, control_hz: float) -> dict[str, Any]:
        """Joint targets."""
        return {EMBODIMENT: JOINTS, "gripper": "0 closed, 1 open", "control_hz": control_hz}


def make_vec(
    *,
    num_envs: int,
    suite: str = "robotwin_clean",
    cameras: Sequence[str] = tuple(facts.CAMERAS),
    image_size: int = 0,
    fit: Fit | str = Fit.stretch,
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/RoboTwin-v0``, one process per environment, with the settings of :func:`robotwin_launch`.

    ``image_size`` is the side of square images (pixels), which ``fit`` makes of RoboTwin's; 0 keeps these. The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    return SuiteVecEnv(
        robotwin_launch(suite, cameras=cameras),
        num_envs=num_envs,
        workers=num_envs,
        horizon=facts.DEFAULT_STEPS,
        cameras=tuple(cameras),
        image_size=image_size,
        images=squares(image_size, fit),
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.robotwin:make_vec")
