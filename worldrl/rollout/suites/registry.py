"""Every external suite under its name: how its workers are started, and how many.

LIBERO, ManiSkill, RoboTwin and Isaac Lab; the embedded suite needs no worker environment and is not among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, suite_actions
from worldrl.core.errors import SettingError
from worldrl.rollout.agents.policy_folder import require_policy_fits
from worldrl.rollout.agents.vector_agent import UNKNOWN_SIZE
from worldrl.rollout.suites.isaac import isaac_launch
from worldrl.rollout.suites.libero import libero_launch, libero_tasks
from worldrl.rollout.suites.maniskill import maniskill_launch
from worldrl.rollout.suites.robotwin import robotwin_launch
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch
from worldrl.workers.isaac import facts as isaac_facts
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.maniskill import facts as maniskill_facts
from worldrl.workers.robotwin import facts as robotwin_facts

FAMILIES = {
    "libero": tuple(libero_facts.suite_names()),
    "maniskill": tuple(maniskill_facts.SUITES),
    "robotwin": tuple(robotwin_facts.CONFIGS),
    "isaac": tuple(isaac_facts.SUITES),
}
"""Environment (of ``worldrl setup``) → its suites."""
SCRIPTED = ("libero", "maniskill")
"""Families with a scripted expert that acts step by step."""


def suite_names() -> list[str]:
    """Every external suite."""
    return [name for names in FAMILIES.values() for name in names]


def family_of(suite: str) -> str:
    """The environment of a suite of :func:`suite_names`."""
    return next(family for family, names in FAMILIES.items() if suite in names)


def unscripted(suite: str, tasks: Sequence[str]) -> list[str]:
    """Those of the tasks that the suite's scripted expert does not play; no tasks are all of the suite's."""
    if family_of(suite) == "maniskill":
        without = [name for name in maniskill_facts.SUITES[suite] if not maniskill_facts.TASKS[name].expert]
    else:
        without = list(libero_facts.UNSCRIPTED.get(libero_facts.split_suite(suite)[0], ()))
    return [name for name in without if not tasks or name in tasks]


def require_expert(setting: str, suite: str, tasks: Sequence[str]) -> None:
    """Refuse a scripted expert that some of the tasks do not have, before any worker is started.

    ``setting`` is the one that asks for the expert; empty ``tasks`` takes all. Raises SettingError (there is none, or
    not for some tasks; with the tasks that have one, as a setting to copy). Raises WorkerEnvironmentError (LIBERO is
    not set up).
    """
    family = family_of(suite)
    if family not in SCRIPTED:
        raise SettingError(f"{setting}: {suite} has no scripted expert that acts step by step; give a policy")
    if without := unscripted(suite, tasks):
        names = maniskill_facts.SUITES[suite] if family == "maniskill" else libero_tasks(suite)
        others = [name for name in tasks or names if name not in without]
        select = f"select others with tasks=[{','.join(others)}]" if others else "choose other tasks, or give a policy"
        raise SettingError(f"{setting}: the scripted expert of {suite} does not play {', '.join(without)}; {select}")


def main_camera(suite: str) -> str:
    """The camera whose image is called ``image``."""
    return "head" if family_of(suite) == "robotwin" else "scene"


@dataclass(frozen=True)
class SuiteSpec:
    """Inputs and outputs of a suite's robot, known before any worker is started.

    ``cameras`` begin with the main one and are empty in a suite without images. ``picture`` is the rows and columns of
    its own images, rendered where ``image_size`` is 0; None where all are square. ``vector`` is the size of the vector
    for agents, unknown before the worker states it; None where the suite has none.
    """

    actions: ActionSpec
    cameras: tuple[str, ...]
    picture: tuple[int, int] | None = None
    vector: int | None = None


def suite_spec(suite: str) -> SuiteSpec:
    """The spec of a suite of :func:`suite_names`."""
    family = family_of(suite)
    if family == "robotwin":
        actions = suite_actions({"joints": robotwin_facts.joints()})
        return SuiteSpec(actions, tuple(robotwin_facts.CAMERAS), robotwin_facts.IMAGE)
    if family == "isaac":
        cameras = tuple(isaac_facts.CAMERAS) if isaac_facts.SUITES[suite].images else ()
        return SuiteSpec(TOOL_ACTIONS, cameras, vector=UNKNOWN_SIZE)
    cameras = libero_facts.CAMERAS if family == "libero" else maniskill_facts.CAMERAS
    return SuiteSpec(TOOL_ACTIONS, tuple(cameras))


def require_suite_fits(suite: str, policy: Path) -> None:
    """Refuse a policy that a suite has no inputs or no robot for, before any worker is started.

    Raises SettingError (both specs side by side, the nearest adapter, and the suites that such a policy fits).
    """
    problem = _misfit(suite, policy)
    if problem is not None:
        others = [name for name in suite_names() if _misfit(name, policy) is None]
        raise SettingError(f"{problem}\nexternal suites for this policy: {', '.join(others) or 'none'}") from problem


def _misfit(suite: str, policy: Path) -> SettingError | None:
    spec = suite_spec(suite)
    try:
        shown = {"cameras": spec.cameras, "picture": spec.picture, "vector": spec.vector}
        require_policy_fits(policy, spec.actions, f"the suite {suite}", **shown)
    except SettingError as problem:
        return problem
    return None


def drawn_size(suite: str, picture: tuple[int, int]) -> int:
    """The ``image_size`` of a suite for images of these rows and columns; 0 for its own size.

    Raises SettingError (it cannot render them).
    """
    rows, columns = picture
    if rows == columns:
        return rows
    if picture != suite_spec(suite).picture:
        raise SettingError(f"{suite} draws square images; the policy's are {rows} by {columns} pixels")
    return 0


@dataclass(frozen=True)
class WorkerConfig:
    """How a suite's workers are started and restarted.

    ``slots`` counts environments in all, ``restarts`` those of a worker per episode. A worker is replaced after
    ``recycle_after`` episodes; None never.
    """

    launch: Launch
    workers: int
    slots: int
    restarts: int
    recycle_after: int | None

    @property
    def pool(self) -> dict[str, Any]:
        """Arguments of :class:`~worldrl.simulators.pool.SimulatorPool` besides the launch."""
        return {name: getattr(self, name) for name in ("workers", "slots", "restarts", "recycle_after")}


def worker_config_of(
    suite: str,
    *,
    cameras: Sequence[str],
    image_size: int,
    shadows: bool,
    assets: str,
    workers: int,
    slots: int,
    restarts: int,
    recycle_after: int | None,
) -> WorkerConfig:
    """Return how a suite's workers are started, as its simulator allows.

    RoboTwin holds one environment per process. Isaac Lab holds all of them in one, and its physics is not
    deterministic, so lost episodes cannot be played again. ``cameras`` are the suite's; empty renders nothing.
    ``image_size`` is the side of square images (pixels); 0 renders the suite's own (:class:`SuiteSpec`). ``shadows``
    and ``assets`` are LIBERO's. Raises SettingError (unknown camera). Raises WorkerEnvironmentError (not set up, or
    nothing renders there).
    """
    family = family_of(suite)
    if family == "isaac":
        launch = isaac_launch(suite, num_envs=slots, cameras=cameras, image_size=image_size)
        return WorkerConfig(launch, 1, slots, 0, None)
    if family == "robotwin":
        launch, slots = robotwin_launch(suite, cameras=cameras, image_size=image_size), workers
    elif family == "maniskill":
        launch = maniskill_launch(suite, cameras=cameras, image_size=image_size)
    else:
        launch = libero_launch(suite, cameras=cameras, image_size=image_size, shadows=shadows, assets=assets)
    return WorkerConfig(launch, workers, slots, restarts, recycle_after)


def assets_note(suite: str, described: Mapping[str, Any], *, assets: str, given: str) -> str:
    """Return the note on a suite's assets for every result; empty where they are the benchmark's own.

    A note given at setup belongs to the assets' content, in any folder, and to their folder, with any content. The
    job's own note ``given`` is appended. ``described`` is the worker's description of the suite; empty ``assets`` means
    the folder given at setup.
    """
    if family_of(suite) != "libero":
        return given
    record = find_environment("libero").record
    folder = str(record.get("assets", ""))
    notes = [record.get("assets_notes", {}).get(described["assets"], "")]
    if not assets or Path(assets).resolve() == Path(folder).resolve():
        notes.append(str(record.get("assets_note", "")))
    return "; ".join(dict.fromkeys(note for note in (*notes, given) if note))
