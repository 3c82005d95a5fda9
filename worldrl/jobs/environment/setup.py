"""``worldrl setup NAME``: builds an external package's own Python environment in the user's cache, and checks it at the end.

LIBERO's with its assets, ManiSkill's, lerobot's and those of worldrl's own adapters are built. RoboTwin and Isaac Lab
come by their vendors' own installers: their setup looks where ``python=`` and ``checkout=`` point, says what is missing,
and remembers them.
Nothing is asked: what cannot be done is an error that says what to do. Running it again checks a finished environment and
repairs an unfinished one; ``assets=`` may be given later. Of lerobot there are two locks, 0.4.4 for Python 3.11 and 0.6.1
for 3.12: the interpreter decides which is built, and policies run in the one whose setup passed last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError, WorkerEnvironmentError, WorkerError
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.core.storage.lock import take_lock
from worldrl.jobs.environment.setup_adopt import adopt
from worldrl.jobs.environment.setup_assets import OWN, noted_assets, own_assets, pro_data
from worldrl.jobs.environment.setup_build import build, say, wanted_lock
from worldrl.policies.lerobot.worker import ENVIRONMENT as LEROBOT
from worldrl.policies.lerobot.worker import OFFLINE
from worldrl.recipes.run import open_run
from worldrl.rollout.suites.libero import libero_launch
from worldrl.rollout.suites.maniskill import maniskill_launch
from worldrl.rollout.suites.names import ADAPTERS
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Workers
from worldrl.settings import one_of, positive, setting
from worldrl.simulators.environments import (
    CHECKED,
    LOCKS,
    NAMES,
    RECORD,
    SCHEMA,
    Lock,
    built_folder,
    environment_folder,
    find_environment,
    interpreter,
    use_lock,
)
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch, SimulatorProcess, WorkerDied
from worldrl.workers.libero import facts
from worldrl.workers.link.rendering import choose_backend


@dataclass
class SetupSettings:
    """Settings of ``worldrl setup``."""

    name: str = setting("", f"which environment: {', '.join(NAMES)}")
    run_dir: str = setting("runs/setup", "folder that receives result.json")
    seed: int = setting(0, "recorded only: setup draws no random numbers")
    python: str = setting(
        "", "interpreter: to build with, Python 3.11, lerobot also 3.12; robotwin, isaac: that of their own environment"
    )
    checkout: str = setting("", "robotwin: folder of a RoboTwin 2.0 checkout")
    assets: str = setting(
        "", "folder of yours with LIBERO's assets, remembered; empty: that, or LIBERO's own; own: those"
    )
    assets_note: str = setting("", "note for every result made with them, for example 'stand-in bowl'")
    timeout_s: float = setting(600.0, "longest silence of the check at the end (s)")

    def __post_init__(self) -> None:
        """Check the name and the ranges."""
        if self.name:
            one_of("name", self.name, NAMES)
        positive("timeout_s", self.timeout_s)


def main(settings: SetupSettings) -> dict[str, Any]:
    """Build what is missing, check it, and write ``result.json``.

    Returns where the environment is and what the check found. Raises SettingError (no environment is named, or the
    assets' folder holds none) and WorkerEnvironmentError (a step failed; the message names its log).
    """
    if not settings.name:
        raise SettingError(f"setup: which environment? Write worldrl setup NAME, with one of {', '.join(NAMES)}")
    if settings.assets and settings.name != "libero":
        raise SettingError(f"assets: {settings.name} needs none; leave it out")
    if settings.assets_note and not settings.assets:
        raise SettingError("assets_note: give the folder that it is about as well: assets=FOLDER")
    if settings.assets not in ("", OWN) and not (Path(settings.assets) / "scenes").is_dir():
        raise SettingError(f"assets: {settings.assets} holds no LIBERO assets (no folder 'scenes' in it)")
    lock = wanted_lock(settings.name, settings.python) if settings.name in LOCKS else None
    folder = built_folder(lock) if lock else environment_folder(settings.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open_run("setup", settings) as run:
        held = take_lock(folder.with_suffix(".lock"), f"worldrl setup {settings.name}")
        try:
            metrics = {"folder": str(folder), **ready(settings, lock, folder)}
        finally:
            os.close(held)
        run.write_result(metrics, seed=settings.seed, device="cpu")
    say(f"{settings.name}: ready")
    return metrics


def ready(settings: SetupSettings, lock: Lock | None, folder: Path) -> dict[str, Any]:
    """Build or adopt (without a lock) an environment, check it, and let it be used; returns what was found."""
    if lock is None:
        return adopt(settings.name, python=settings.python, checkout=settings.checkout, folder=folder)
    if not (folder / RECORD).exists():
        build(settings.name, lock, settings.python, folder)
    assets = remember(settings, folder)
    note_checked(folder, False)  # until this check has passed, whatever an earlier one found
    if settings.name == "libero":
        remember(replace(settings, assets=own_assets(folder, assets)), folder)
        pro_data(folder)
    lerobot = partial(check_lerobot, python=str(interpreter(folder)))  # it is not in use before it has passed
    checks = {"libero": check_libero, "maniskill": check_maniskill, LEROBOT: lerobot}
    found = checks.get(settings.name, check_adapter)(settings)
    note_checked(folder, True)
    use_lock(settings.name, lock)
    return found


def note_checked(folder: Path, passed: bool) -> None:
    """Write down whether an environment's check has passed; doctor reads nothing else."""
    record = read_json(folder / RECORD, error=WorkerEnvironmentError)
    write_json(folder / RECORD, {**record, CHECKED: passed}, error=WorkerEnvironmentError)


def remember(settings: SetupSettings, folder: Path) -> str:
    """Write the environment's record; from here on it counts as built. Returns the folder of its assets."""
    path = folder / RECORD
    known = read_json(path, error=WorkerEnvironmentError) if path.exists() else {}
    record = {"schema": SCHEMA, "name": settings.name, "assets": "", "assets_note": "", "assets_notes": {}, **known}
    if settings.assets == OWN:
        record |= {"assets": "", "assets_note": ""}
    elif settings.assets or (record["assets"] and Path(record["assets"]).is_dir()):
        record |= noted_assets(record, settings.assets or record["assets"], settings.assets_note)
    write_json(path, record, error=WorkerEnvironmentError)
    return record["assets"]


# --- checking ------------------------------------------------------------------------------------------------------


def check_libero(settings: SetupSettings) -> dict[str, Any]:
    """Start a worker, let a stored state settle, and draw an image.

    Raises WorkerError: the worker cannot serve, or its physics is not the protocol's.
    """
    environment = find_environment(settings.name)
    backend, reasons = choose_backend(environment.python, settings.timeout_s)
    say(f"check: renders with {backend}" if backend else f"check: nothing renders: {'; '.join(reasons)}")
    launch = libero_launch(facts.SETTLE_PROBE.suite, cameras=())
    with SimulatorPool(launch, timeout_s=settings.timeout_s) as pool:
        say(f"check: {len(pool.suite['tasks'])} tasks of {pool.suite['suite']}, packages {pool.suite['packages']}")
        probe = pool.probe()
        say(f"check: a stored state settles within {probe['distance_mm']:.1f} mm")
        assets = pool.suite["assets"]
    return {"render": backend or "none", "assets": assets, "settle_mm": probe["distance_mm"]}


def check_maniskill(settings: SetupSettings) -> dict[str, Any]:
    """Find a device that draws, start a worker, and look whether a scene stands still.

    Raises WorkerError: the worker cannot serve; WorkerEnvironmentError: Vulkan finds no device.
    """
    launch = maniskill_launch("maniskill_cubes", cameras=())
    say(f"check: draws on {launch.options['device']}")
    with SimulatorPool(launch, timeout_s=settings.timeout_s) as pool:
        say(f"check: {len(pool.suite['tasks'])} tasks, packages {pool.suite['packages']}")
        probe = pool.probe()
    say(f"check: a scene at rest moves by {probe['distance_mm']:.1f} mm")
    return {"render": launch.options["device"], "settle_mm": probe["distance_mm"]}


def check_adapter(settings: SetupSettings) -> dict[str, Any]:
    """Start a worker of the environment's adapter, draw an image, and begin one episode twice.

    Raises WorkerError (the worker cannot serve).
    """
    name = next(name for name, (environment, _) in ADAPTERS.items() if environment == settings.name)
    suite = find_suite(name)
    config = suite.worker_config(Workers(suite.spec.cameras, 64, workers=1, slots=1, restarts=0, recycle_after=None))
    with SimulatorPool(config.launch, timeout_s=settings.timeout_s, **config.pool) as pool:
        say(f"check: {len(pool.suite['tasks'])} tasks of {name}, packages {pool.suite['packages']}")
        pool.probe()
        pool.reset({0: Start(suite.tasks()[0], 0, 0)}, render=True)
    return {"suite": name, "packages": pool.suite["packages"]}


def check_lerobot(settings: SetupSettings, python: str) -> dict[str, Any]:
    """Import lerobot's policies in a worker. Raises WorkerError: they cannot be imported."""
    launch = Launch(LEROBOT, python, "worldrl.policies.lerobot.service:Installation", {}, OFFLINE)
    process = SimulatorProcess(launch, number=0, timeout_s=settings.timeout_s)
    try:
        packages = process.answer()[0]["suite"]["packages"]
    except WorkerDied as news:
        raise WorkerError(f"{LEROBOT}: its worker {news}") from news
    finally:
        process.stop()
    say(f"check: lerobot's policies import, packages {packages}")
    return {"packages": packages}
