"""Python environments of simulators and policies whose pins fit no others: their folders and records.

::

    <cache>/environments/libero-<first digits of the lock's hash>/
      venv/               built from worldrl/workers/locks/libero.txt
      ...                 what the suite's setup adds
      environment.json    written last: without it the folder is an unfinished attempt
    <cache>/environments/robotwin/
      environment.json    names the user's own interpreter: worldrl cannot build this simulator
    <cache>/environments/lerobot.json
                          names lerobot's lock in use: that of the last setup that passed its check

The cache is ``$WORLDRL_CACHE``, else ``$XDG_CACHE_HOME/worldrl``, else ``~/.cache/worldrl``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.workers.link import boot

CACHE_VARIABLE = "WORLDRL_CACHE"
RECORD = "environment.json"
CHECKED = "checked"
"""Key of a built environment's record: whether setup's check at the end has passed."""
SCHEMA = 1


@dataclass(frozen=True)
class Lock:
    """Exact packages of an environment, for one Python version that they have wheels for.

    ``name`` is that of the file in ``workers/locks`` and of the environment's folder; ``size`` is of the built
    environment.
    """

    name: str
    python: str
    size: str

    @property
    def path(self) -> Path:
        """The file."""
        return Path(boot.__file__).parents[1] / "locks" / f"{self.name}.txt"


LOCKS: Mapping[str, tuple[Lock, ...]] = {
    "libero": (Lock("libero", "3.11", "2 GB"),),
    "maniskill": (Lock("maniskill", "3.11", "2.1 GB"),),
    "metaworld": (Lock("metaworld", "3.11", "0.4 GB"),),
    "fetch": (Lock("fetch", "3.11", "0.3 GB"),),
    "pusht": (Lock("pusht", "3.11", "0.4 GB"),),
    "aloha": (Lock("aloha", "3.11", "0.7 GB"),),
    "lerobot": (Lock("lerobot", "3.11", "2 GB"), Lock("lerobot06", "3.12", "6 GB")),
}
"""Built by worldrl: hf-libero's pins have wheels for 3.11, lerobot 0.4.4's newest version; lerobot 0.6.1 needs 3.12."""
NAMES = ("libero", "maniskill", "metaworld", "fetch", "pusht", "aloha", "robotwin", "isaac", "lerobot")
"""Environments of ``worldrl setup``; one without locks is the user's own and is only checked and recorded."""


def cache_dir() -> Path:
    """The user's cache of worldrl."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldrl"


def built_folder(lock: Lock) -> Path:
    """Folder of a lock's environment; another lock has another folder."""
    digest = hashlib.sha256(lock.path.read_bytes()).hexdigest()
    return cache_dir() / "environments" / f"{lock.name}-{digest[:8]}"


def environment_folder(name: str) -> Path:
    """Folder of the environment in use under a name."""
    return built_folder(used_lock(name)) if name in LOCKS else cache_dir() / "environments" / name


def used_lock(name: str) -> Lock:
    """The lock in use: the noted one, else the first."""
    return noted_lock(name) or LOCKS[name][0]


def noted_lock(name: str) -> Lock | None:
    """The lock noted by :func:`use_lock`, or None; WorkerEnvironmentError for an unknown one."""
    note = cache_dir() / "environments" / f"{name}.json"
    if not note.is_file():
        return None
    noted = read_json(note, error=WorkerEnvironmentError).get("lock")
    for lock in LOCKS[name]:
        if lock.name == noted:
            return lock
    raise WorkerEnvironmentError(
        f"{note}: lock {noted!r} is of another version of worldrl; remove that file and run `worldrl setup {name}`"
    )


def use_lock(name: str, lock: Lock) -> None:
    """Note which of several locks an environment uses."""
    if len(LOCKS[name]) > 1:
        note = cache_dir() / "environments" / f"{name}.json"
        write_json(note, {"schema": SCHEMA, "lock": lock.name}, error=WorkerEnvironmentError)


@dataclass(frozen=True)
class WorkerEnvironment:
    """A finished environment, such as ``libero``, its folder and setup's record."""

    name: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def python(self) -> str:
        """Its interpreter: the built one, or the user's own given at setup."""
        return str(self.record.get("python") or interpreter(self.folder))


def interpreter(folder: Path) -> Path:
    """The interpreter of an environment's folder."""
    return folder / "venv" / "bin" / "python"


def find_environment(name: str) -> WorkerEnvironment:
    """Return an environment that is ready.

    Raises WorkerEnvironmentError (it was not built, or not completely; the message names the command).
    """
    folder = environment_folder(name)
    if not (folder / RECORD).is_file():
        state = "is unfinished" if folder.exists() else "does not exist"
        raise WorkerEnvironmentError(
            f"{name}: its environment {folder} {state}; build it with `worldrl setup {name}` "
            f"(the cache is chosen by {CACHE_VARIABLE})"
        )
    record = read_json(folder / RECORD, error=WorkerEnvironmentError)
    environment = WorkerEnvironment(name, folder, record)
    if record.get("schema") != SCHEMA or not Path(environment.python).exists():
        raise WorkerEnvironmentError(
            f"{name}: {folder} is damaged or of another version, or {environment.python} is gone; run "
            f"`worldrl setup {name}`"
        )
    return environment
