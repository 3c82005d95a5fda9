"""Python environments of their own, for simulators and policies whose pins meet no others: where they lie, what they hold.

::

    <cache>/environments/libero-<first digits of the lock's hash>/
      venv/               built from worldrl/workers/locks/libero.txt
      ...                 what the suite's setup adds
      environment.json    written last: without it the folder is an unfinished attempt
    <cache>/environments/robotwin/
      environment.json    names the user's own interpreter: worldrl cannot build this simulator, only remember it

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
from worldrl.core.jsonfile import read_json
from worldrl.workers import boot

CACHE_VARIABLE = "WORLDRL_CACHE"
RECORD = "environment.json"
CHECKED = "checked"
"""Key of a built environment's record: whether setup's check at the end has passed."""
SCHEMA = 1
NAMES = ("libero", "maniskill", "robotwin", "isaac", "lerobot")
"""Environments that ``worldrl setup`` knows; one without a lock is the user's own and is only checked and remembered."""


def cache_dir() -> Path:
    """The user's cache of worldrl."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldrl"


def lock_file(name: str) -> Path:
    """The exact packages of an environment."""
    return Path(boot.__file__).parent / "locks" / f"{name}.txt"


def environment_folder(name: str) -> Path:
    """Where an environment belongs; another lock is another folder."""
    if not lock_file(name).is_file():
        return cache_dir() / "environments" / name
    digest = hashlib.sha256(lock_file(name).read_bytes()).hexdigest()
    return cache_dir() / "environments" / f"{name}-{digest[:8]}"


@dataclass(frozen=True)
class WorkerEnvironment:
    """A finished environment.

    Attributes:
        name: for example ``"libero"``.
        folder: where it lies.
        record: what setup wrote down about it.
    """

    name: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def python(self) -> str:
        """Its interpreter: the built one, or the user's own that setup was told."""
        return str(self.record.get("python") or interpreter(self.folder))


def interpreter(folder: Path) -> Path:
    """The interpreter of an environment's folder."""
    return folder / "venv" / "bin" / "python"


def find_environment(name: str) -> WorkerEnvironment:
    """Return an environment that is ready.

    Raises:
        WorkerEnvironmentError: it was not built, or not to its end; the message names the command.
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
