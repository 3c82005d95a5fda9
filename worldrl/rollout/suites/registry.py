"""Every external suite under its name; the embedded suite needs no worker environment and is not among them.

A name selects LIBERO, ManiSkill, RoboTwin, Isaac Lab, an adapter of worldrl (Meta-World), an installed package's adapter
(entry points of the group ``worldrl.suites``, ``name = "module:Class"``), or a user's own: ``FILE.py:Class``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from worldrl.core.errors import SettingError
from worldrl.rollout.agents.policy_folder import require_policy_fits
from worldrl.rollout.suites.names import ADAPTERS, FAMILIES, own_adapter, plugins, suite_names
from worldrl.rollout.suites.suite import Suite
from worldrl.simulators.environments import find_environment


def known_suite(name: str) -> Suite | None:
    """A suite of LIBERO, ManiSkill, RoboTwin or Isaac Lab, known without its worker; None for any other name."""
    from worldrl.rollout.suites.isaac import IsaacSuite
    from worldrl.rollout.suites.libero import LiberoSuite
    from worldrl.rollout.suites.maniskill import ManiSkillSuite
    from worldrl.rollout.suites.robotwin import RoboTwinSuite

    kinds = (LiberoSuite, ManiSkillSuite, RoboTwinSuite, IsaacSuite)
    return next((kind(name) for kind in kinds if name in FAMILIES[kind.family]), None)


def find_suite(name: str, python: str = "") -> Suite:
    """The suite of a value of ``suite=``.

    ``python`` is the interpreter of an adapter; empty takes this one. Raises SettingError (no such suite, file or
    interpreter; or an interpreter for a suite that brings its own). Raises WorkerEnvironmentError (its environment is
    not set up). Raises WorkerError (an adapter describes itself wrongly).
    """
    from worldrl.rollout.suites.adapter import AdapterSuite

    suite, target, own = known_suite(name), "", ""
    if suite is None:
        target, own = _target_of(name)
    if python and (suite or own):
        raise SettingError(f"python: {name} runs in the environment of `worldrl setup`; leave python out")
    if python and not Path(python).exists():
        raise SettingError(f"python: {python} does not exist; give the interpreter that has the simulator")
    return suite or AdapterSuite(name, target, own or python or sys.executable)


def _target_of(name: str) -> tuple[str, str]:
    """Class of an adapter and the interpreter that it must have, empty where any will do."""
    if name in ADAPTERS:
        environment, target = ADAPTERS[name]
        return target, find_environment(environment).python
    brought = plugins()
    if name in brought:
        return brought[name], ""
    file, kind = own_adapter(name, [*suite_names(), *brought])
    if not Path(file).is_file():
        raise SettingError(f"suite: there is no file {file}")
    return f"{Path(file).resolve()}:{kind}", ""


def require_suite_fits(suite: Suite, policy: Path) -> None:
    """Refuse a policy that a suite has no inputs or no robot for, before any worker is started.

    Raises SettingError (both specs side by side, the nearest adapter, and the suites that such a policy fits).
    """
    problem = _misfit(suite, policy)
    if problem is not None:
        known = [known_suite(name) for names in FAMILIES.values() for name in names]
        others = [other.name for other in known if other is not None and _misfit(other, policy) is None]
        raise SettingError(f"{problem}\nexternal suites for this policy: {', '.join(others) or 'none'}") from problem


def _misfit(suite: Suite, policy: Path) -> SettingError | None:
    spec = suite.spec
    try:
        shown = {"cameras": spec.cameras, "picture": spec.picture, "vector": spec.vector}
        require_policy_fits(policy, spec.actions, f"the suite {suite.name}", **shown)
    except SettingError as problem:
        return problem
    return None
