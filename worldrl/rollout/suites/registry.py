"""Every foreign suite under its name: how its workers are started, and what their number must be.

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
from worldrl.rollout.agents.vector_agent import UNTOLD
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
"""Families with a scripted expert that can be asked for one action."""


def suite_names() -> list[str]:
    """Every foreign suite."""
    return [name for names in FAMILIES.values() for name in names]


def family_of(suite: str) -> str:
    """The environment that a suite lives in; the suite must be one of :func:`suite_names`."""
    return next(family for family, names in FAMILIES.items() if suite in names)


def unscripted(suite: str, tasks: Sequence[str]) -> list[str]:
    """Which of these tasks the suite's scripted expert does not play; no tasks are all of the suite's."""
    if family_of(suite) == "maniskill":
        without = [name for name in maniskill_facts.SUITES[suite] if not maniskill_facts.TASKS[name].expert]
    else:
        without = list(libero_facts.UNSCRIPTED.get(libero_facts.split_suite(suite)[0], ()))
    return [name for name in without if not tasks or name in tasks]


def require_expert(setting: str, suite: str, tasks: Sequence[str]) -> None:
    """Refuse a scripted expert that some of the tasks do not have, before any worker is started.

    Args:
        setting: that asks for the expert.
        suite: a name of :func:`suite_names`.
        tasks: names; empty takes all.

    Raises:
        SettingError: there is none, or not for some tasks; with the tasks that have one, as a setting to copy.
        WorkerEnvironmentError: LIBERO is not set up.
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
    """The camera whose picture is called ``image``."""
    return "head" if family_of(suite) == "robotwin" else "scene"


@dataclass(frozen=True)
class SuiteSpec:
    """What a suite's robot takes and shows, known before any worker is started.

    Attributes:
        actions: what their numbers are.
        cameras: ours, the main one first; empty where there is nothing to see.
        picture: rows and columns of its own pictures, drawn where ``image_size`` is 0; None where all are square.
        vector: size of the vector for agents, which only the worker knows; None where the suite shows none.
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
        cameras = tuple(isaac_facts.CAMERAS) if isaac_facts.SUITES[suite].pictures else ()
        return SuiteSpec(TOOL_ACTIONS, cameras, vector=UNTOLD)
    cameras = libero_facts.CAMERAS if family == "libero" else maniskill_facts.CAMERAS
    return SuiteSpec(TOOL_ACTIONS, tuple(cameras))


def require_suite_fits(suite: str, policy: Path) -> None:
    """Refuse a policy that a suite has no inputs or no robot for, before any worker is started.

    Raises:
        SettingError: both specs side by side, the nearest adapter, and the suites that such a policy fits.
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
    """What a suite is told to draw pictures of these rows and columns: the side of a square, or 0 for its own picture.

    Raises:
        SettingError: it cannot draw them.
    """
    rows, columns = picture
    if rows == columns:
        return rows
    if picture != suite_spec(suite).picture:
        raise SettingError(f"{suite} draws square images; the policy's are {rows} by {columns} pixels")
    return 0


@dataclass(frozen=True)
class WorkerConfig:
    """How a suite's workers are started and kept.

    Attributes:
        launch: of each.
        workers: processes.
        slots: environments in all.
        restarts: restarts of a worker per episode.
        recycle_after: episodes after which a worker is replaced; None never.
    """

    launch: Launch
    workers: int
    slots: int
    restarts: int
    recycle_after: int | None

    @property
    def pool(self) -> dict[str, Any]:
        """Arguments of :class:`~worldrl.simulators.pool.SimulatorPool` besides the launch."""
        names = ("workers", "slots", "restarts", "recycle_after")
        return {name: getattr(self, name) for name in names}


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
    """Say how a suite's workers are started, as its simulator allows.

    RoboTwin holds one environment per process, Isaac Lab all of them in one, and its physics does not repeat itself, so
    what it loses cannot be played again.

    Args:
        suite: a name of :func:`suite_names`.
        cameras: the suite's; empty draws nothing.
        image_size: pixels of the square pictures; 0 draws the suite's own (:class:`SuiteSpec`).
        shadows: LIBERO's.
        assets: LIBERO's.
        workers: processes.
        slots: environments in all.
        restarts: restarts of a worker per episode.
        recycle_after: episodes after which a worker is replaced.

    Raises:
        SettingError: unknown camera.
        WorkerEnvironmentError: not set up, or nothing draws there.
    """
    family = family_of(suite)
    if family == "isaac":
        launch = isaac_launch(suite, num_envs=slots, cameras=cameras, image_size=image_size)
        return WorkerConfig(launch, 1, slots, 0, None)
    if family == "robotwin":
        launch = robotwin_launch(suite, cameras=cameras, image_size=image_size)
        return WorkerConfig(launch, workers, workers, restarts, recycle_after)
    if family == "maniskill":
        launch = maniskill_launch(suite, cameras=cameras, image_size=image_size)
        return WorkerConfig(launch, workers, slots, restarts, recycle_after)
    launch = libero_launch(suite, cameras=cameras, image_size=image_size, shadows=shadows, assets=assets)
    return WorkerConfig(launch, workers, slots, restarts, recycle_after)


def assets_note(suite: str, described: Mapping[str, Any], *, assets: str, given: str) -> str:
    """Say what every result must say about a suite's assets; empty where they are the benchmark's own.

    What setup was told belongs to the assets' content, whatever folder it lies in, and to their folder, whatever became of
    its content; what a job is told besides is added to it.

    Args:
        suite: its name.
        described: what its worker says about it.
        assets: folder that the job names; empty for the one that setup was told.
        given: what the job's settings say.
    """
    if family_of(suite) != "libero":
        return given
    record = find_environment("libero").record
    folder = str(record.get("assets", ""))
    told = [record.get("assets_notes", {}).get(described["assets"], "")]
    if not assets or Path(assets).resolve() == Path(folder).resolve():
        told.append(str(record.get("assets_note", "")))
    return "; ".join(dict.fromkeys(note for note in (*told, given) if note))
