"""A user's own environment as a suite: one class in a file or an installed package, played in a worker process.

The class and its methods: ``worldrl/workers/adapter``. Where it is described, one worker is started and stopped.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from worldrl.core.embodiment import embodiment_from_json
from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.image_fit import Fit, squares
from worldrl.rollout.suites.suite import (
    OWN_IMAGES,
    UNKNOWN,
    Conventions,
    Suite,
    SuiteSpec,
    WorkerConfig,
    Workers,
    robot_meaning,
)
from worldrl.simulators.process import Launch, SimulatorProcess, WorkerDied
from worldrl.simulators.renderer import given_backend

TARGET = "worldrl.workers.adapter.worker:Adapter"
STARTUP_S = 50.0
"""Time limit of the import of an adapter and its simulator (s); the variable replaces it for slower ones."""
STARTUP_VARIABLE = "WORLDRL_STARTUP_S"


class AdapterSuite(Suite):
    """The suite of an adapter class ``target``, played by the interpreter ``python``.

    ``setting`` is the value of ``suite=`` that selected it. Raises WorkerError (the class cannot be loaded, or is
    described wrongly). Raises SettingError (its robot is impossible).
    """

    family = "adapter"

    def __init__(self, setting: str, target: str, python: str) -> None:
        self._setting, self._target, self.python = setting, target, python
        self.described = _described(setting, target, python)
        super().__init__(str(self.described["suite"]))
        self._tasks = {task["name"]: int(task["horizon"]) for task in self.described["tasks"]}
        self.stored_states = int(self.described["stored_states"])
        try:
            self.embodiment = self._robot = embodiment_from_json(self.described["robot"])
            self.spec = SuiteSpec(self._robot.actions, tuple(self.described["cameras"]), **_own_images(self.described))
        except SettingError as error:
            raise SettingError(f"{setting}: robot: {error}") from error

    @property
    def setting(self) -> str:
        """As it was given."""
        return self._setting

    def tasks(self) -> tuple[str, ...]:
        """In the adapter's order."""
        return tuple(self._tasks)

    def horizon(self, task: str) -> int:
        """The task's own limit."""
        return self._tasks[task]

    def worker_config(self, asked: Workers) -> WorkerConfig:
        """One object of the class per slot."""
        if unknown := [name for name in asked.cameras if name not in self.spec.cameras]:
            raise SettingError(f"cameras: {self.name} has {', '.join(self.spec.cameras)}, got {', '.join(unknown)}")
        options = {"target": self._target, "cameras": list(asked.cameras), "image_size": asked.image_size}
        launch = Launch(self.name, self.python, TARGET, options, _variables())
        launch = replace(launch, startup_s=max(launch.startup_s, _startup_s()))
        images = None if self.spec.fit is None else squares(asked.image_size, self.spec.fit)
        return WorkerConfig(launch, asked.workers, asked.slots, asked.restarts, asked.recycle_after, images)

    def without_expert(self) -> tuple[str, ...] | None:
        """Those that the adapter names; None where it has no expert."""
        without = tuple(self.described["unscripted"])
        return None if set(without) == set(self._tasks) else without

    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """The robot's constants, and the adapter's content: another file is another protocol."""
        own = {"adapter": described["adapter"], **({OWN_IMAGES: self.own_images} if self.own_images else {})}
        return str(described["adapter"])[:12], {**self.meaning(float(described["control_hz"])), **own}

    @property
    def own_images(self) -> str:
        """Sizes of the cameras' own images and how they become squares; empty where the adapter draws squares."""
        sizes = self.described["camera_sizes"].items()
        return ", ".join([*(f"{camera} {y}x{x}" for camera, (y, x) in sizes), self.described["fit"]] if sizes else ())

    def meaning(self, control_hz: float) -> dict[str, Any]:
        """By the robot's constants; frames and images are known to the adapter alone."""
        assert self.embodiment is not None
        return robot_meaning(self._robot, control_hz, [UNKNOWN] * 3)


def _own_images(described: Mapping[str, Any]) -> dict[str, Any]:
    """Size and fit of an adapter's own images; a size that all cameras have can be shown as it is."""
    if not described["fit"]:
        return {}
    sizes = {tuple(size) for size in described["camera_sizes"].values()}
    return {"picture": sizes.pop() if len(sizes) == 1 else None, "fit": Fit(described["fit"])}


def _variables() -> dict[str, str]:
    """MuJoCo draws without a screen."""
    return {} if given_backend() else {"MUJOCO_GL": "egl"}


def _startup_s() -> float:
    """Seconds until an import is given up; SettingError for a variable that is no positive number."""
    given = os.environ.get(STARTUP_VARIABLE, str(STARTUP_S))
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(given)) < math.inf:
            return seconds
    raise SettingError(f"{STARTUP_VARIABLE} must be a positive number of seconds, got {given!r}")


@cache
def _described(setting: str, target: str, python: str) -> dict[str, Any]:
    limit_s = _startup_s()
    launch = Launch(setting, python, TARGET, {"target": target}, _variables(), startup_s=limit_s)
    process = SimulatorProcess(launch, number=0, timeout_s=limit_s)
    try:
        return process.answer()[0]["suite"]
    except WorkerDied as end:
        slow = process.patience_s <= 0
        mend = f"; its import did not end. Allow a slower one more seconds with {STARTUP_VARIABLE}" if slow else ""
        raise WorkerError(f"{setting}: its worker {end}{mend}") from end
    finally:
        process.stop()
