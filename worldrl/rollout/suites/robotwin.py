"""How a RoboTwin worker is started, and ``worldrl/RoboTwin-v0``: a checkout's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.robotwin

    env = gymnasium.make_vec("worldrl/RoboTwin-v0", num_envs=2, suite="robotwin_clean")

Never run against the real RoboTwin; see ``workers/robotwin``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from worldrl.core.actions import suite_actions
from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.image_fit import Fit, squares
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.rollout.suites.suite import EMBODIMENT, JOINTS, Conventions, Suite, SuiteSpec, WorkerConfig, Workers
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
    """A configuration of RoboTwin; the tasks and their limits are those of the checkout.

    Its robot reaches any target within one control step, which has no fixed duration.
    """

    family = "robotwin"
    stored_states = facts.STORED_STATES
    spec = SuiteSpec(suite_actions({"joints": facts.joints()}), tuple(facts.CAMERAS), facts.IMAGE)
    embodiment = JointEmbodiment(
        names=spec.actions.names,
        low=spec.actions.low,
        high=spec.actions.high,
        max_speed=tuple(
            (high - low) * facts.FRAME_HZ for low, high in zip(spec.actions.low, spec.actions.high, strict=True)
        ),
        control_hz=facts.FRAME_HZ,
    )

    def tasks(self) -> tuple[str, ...]:
        """Sorted, as the workers list them."""
        return tuple(sorted(task_limits(_checkout())))

    def horizon(self, task: str) -> int:
        """The checkout's limit; its evaluation takes one limit for tasks that have none of their own."""
        return int(task_limits(_checkout()).get(task, facts.DEFAULT_STEPS))

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


def _checkout() -> str:
    return str(find_environment("robotwin").record["checkout"])


@cache
def task_limits(checkout: str) -> dict[str, Any]:
    """Time limits (control steps) by task, as a checkout's table has them; WorkerEnvironmentError where it is none."""
    file, yaml = Path(checkout) / facts.LIMITS, importlib.import_module("yaml")
    try:
        found: Any = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as reason:
        raise WorkerEnvironmentError(
            f"robotwin: {file} cannot be read ({reason}); run worldrl setup robotwin"
        ) from reason
    if not isinstance(found, dict):
        raise WorkerEnvironmentError(f"robotwin: {file} holds no table of tasks; give worldrl setup another checkout")
    return found


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
