"""How ``worldrl setup`` builds an environment: a virtual environment, build tools, a lock's packages, what a suite adds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.storage.atomic import open_to_append
from worldrl.core.storage.log import console
from worldrl.simulators.environments import LOCKS, RECORD, Lock, built_folder, interpreter, noted_lock, used_lock
from worldrl.workers.link import boot

TOOLS = ("pip==25.3", "setuptools==80.9.0", "wheel==0.45.1")
"""Build what comes as source (bddl, future) with these."""
TORCH = ("torch", "torchvision")
"""Installed with what they need, which differs from machine to machine."""
SHOWN = ("hf-libero", "mani-skill", "metaworld", "gymnasium-robotics", "gym-pusht", "gym-aloha", "lerobot")
"""Packages that an environment is built for."""

Step = tuple[str, list[str]]
"""A title and a command."""


def say(text: str) -> None:
    """Print one line of progress."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def wanted_lock(name: str, given: str) -> Lock:
    """What is to be set up: what a given interpreter builds; without one what is in use, else what this machine can build.

    Raises WorkerEnvironmentError: no interpreter that one of the locks is for.
    """
    if not given and (noted_lock(name) or (built_folder(used_lock(name)) / RECORD).exists()):
        return used_lock(name)
    return find_python(given, LOCKS[name])[1]


def build(name: str, lock: Lock, given: str, folder: Path) -> None:
    """Make an environment anew; an unfinished attempt is removed.

    An empty interpreter in ``given`` looks for one. Raises WorkerEnvironmentError: none is there, or a step failed.
    """
    base, _ = find_python(given, [lock])
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    log = folder / "setup.log"
    shown = " ".join(line for line in pins(lock) if line.partition("==")[0] in SHOWN)
    say(f"building {folder}, {shown}, with {base} (about {lock.size}, some minutes; details in {log})")
    steps = build_steps(name, lock, base, folder)
    for number, (title, command) in enumerate(steps, start=1):
        run_step(f"{number}/{len(steps)} {title}", command, log)


def pins(lock: Lock) -> list[str]:
    """Its packages, ``name==version``."""
    return [line for line in lock.path.read_text().splitlines() if not line.startswith("#")]


def build_steps(name: str, lock: Lock, base: str, folder: Path) -> list[Step]:
    """List an environment's steps.

    LIBERO's and lerobot's locks are complete and installed without looking at what packages ask for: the pins of LIBERO's
    contradict each other, and of lerobot's own many are not needed here.
    """
    python, pip = str(interpreter(folder)), pip_install(folder)
    complete = ("locked packages", [*pip, "--no-deps", "--no-build-isolation", "-r", str(lock.path)])
    first = [("virtual environment", [base, "-m", "venv", str(folder / "venv")]), ("build tools", [*pip, *TOOLS])]
    if name == "libero":
        return [*first, complete, ("initial states", [python, "-I", boot.__file__, "libero.setup", str(folder)])]
    if name == "lerobot":
        torch = [line for line in pins(lock) if line.partition("==")[0] in TORCH]
        return [*first, ("torch and what it needs", [*pip, *torch]), complete]
    return [*first, ("locked packages", [*pip, "-r", str(lock.path)])]


def pip_install(folder: Path) -> list[str]:
    """The command that installs packages in an environment's folder."""
    return [str(interpreter(folder)), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]


def find_python(given: str, locks: Sequence[Lock]) -> tuple[str, Lock]:
    """Return an interpreter and the lock that is for its version.

    An empty ``given`` tries this interpreter, then at those on the path. Raises WorkerEnvironmentError: there is
    none.
    """
    candidates = [given] if given else [sys.executable, *(shutil.which(f"python{lock.python}") for lock in locks)]
    for candidate in filter(None, candidates):
        with suppress(OSError):
            program = [candidate, "-c", "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"]
            found = subprocess.run(program, capture_output=True, text=True, check=False).stdout
            for lock in locks:
                if lock.python == found:
                    return candidate, lock
    wanted = " or ".join(lock.python for lock in locks)
    raise WorkerEnvironmentError(
        f"setup needs Python {wanted}, tried {', '.join(filter(None, candidates))}; install it and give "
        f"python=/path/to/python{locks[0].python}"
    )


def run_step(title: str, command: Sequence[str], log: Path) -> None:
    """Run one step, its output into the log.

    Raises WorkerEnvironmentError: it failed; the message ends with its last line, or with its last error's first one.
    """
    say(title)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with open_to_append(log) as file:
        file.write(f"\n== {title}: {' '.join(command)}\n".encode())
        file.flush()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, check=False
        ).returncode
    if code:
        lines = log.read_text(errors="replace").rpartition(f"== {title}: ")[2].strip().splitlines()
        last = [line for line in lines if line.startswith("ERROR: ")][-1:] or lines[-1:]
        raise WorkerEnvironmentError(f"setup: step {title} failed (exit code {code}): {last[0]}; all of it is in {log}")
