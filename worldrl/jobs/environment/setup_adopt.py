"""Environments that worldrl cannot build, only check and remember: RoboTwin's and Isaac Lab's.

RoboTwin is a checkout with packages that are compiled on the user's machine; Isaac Lab comes from NVIDIA's own index and
needs an RTX card. What is missing is said all at once: what, where it was looked for, and the command that gets it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.storage.jsonfile import write_json
from worldrl.simulators.environments import RECORD, SCHEMA
from worldrl.workers.isaac import facts as isaac_facts
from worldrl.workers.robotwin import facts as robotwin_facts

LOOK_S = 300.0
MODULES = {
    "robotwin": ("sapien", "mplib", "yaml", "cv2", "torch", "curobo"),
    "isaac": ("isaaclab", "isaacsim", "torch"),
}
LOOK = """
import importlib.util, json, sys
from importlib.metadata import packages_distributions, version
names = packages_distributions()
found = {}
for module in sys.argv[1:]:
    there = importlib.util.find_spec(module) is not None
    found[module] = version(names[module][0]) if there and module in names else ("?" if there else None)
print(json.dumps(found))
"""
"""Looks without importing: importing Isaac Lab would start it."""


def adopt(name: str, *, python: str, checkout: str, folder: Path) -> dict[str, Any]:
    """Look whether a user's own environment can serve, and remember it.

    ``name`` is ``robotwin`` or ``isaac``, ``checkout`` RoboTwin's folder; the record goes to ``folder``. Returns
    versions, and RoboTwin's commit. Raises WorkerEnvironmentError: something is missing.
    """
    missing = [] if python else [f"python=: the interpreter of {name}'s environment, e.g. /envs/{name}/bin/python"]
    record: dict[str, Any] = {"schema": SCHEMA, "name": name}
    if name == "robotwin":
        missing += lacking_checkout(checkout)
        record["checkout"] = str(Path(checkout).resolve())
    versions = modules_of(python, MODULES[name]) if python else {}
    absent = [module for module, version in versions.items() if version is None]
    if absent:
        missing.append(f"packages of {python}: {', '.join(absent)}; {HOW[name]}")
    if missing:
        raise WorkerEnvironmentError(f"{name}: missing are: " + "; ".join(missing))
    # not resolved: an environment's interpreter is a link, and only under its own name does it find its packages
    record["python"] = str(Path(python).absolute())
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, record, error=WorkerEnvironmentError)
    return {"versions": versions, "written_for": WRITTEN_FOR[name], "run_before": False}


HOW = {
    "robotwin": "install them with the checkout's own `bash scripts/_install.sh`, in an environment of their own",
    "isaac": (
        "get them with `pip install 'isaaclab[isaacsim,all]==2.3.2'` from NVIDIA's own package index, as Isaac Lab's "
        "installation page says, in an environment of their own (Python 3.11, an RTX card)"
    ),
}
WRITTEN_FOR = {"robotwin": robotwin_facts.COMMIT, "isaac": isaac_facts.WRITTEN_FOR}


def lacking_checkout(checkout: str) -> list[str]:
    """What a folder lacks to be a RoboTwin 2.0 checkout with its assets."""
    if not checkout:
        return [
            "checkout=: folder of RoboTwin 2.0; get it with `git clone https://github.com/RoboTwin-Platform/RoboTwin`"
        ]
    root = Path(checkout)
    files = [name for name in robotwin_facts.NEEDED if not (root / name).is_file()]
    if files:
        return [
            f"in checkout {root}: {', '.join(files)}; this adapter is for RoboTwin 2.0 as of {robotwin_facts.COMMIT[:12]}"
        ]
    assets = [name for name in robotwin_facts.ASSETS if not (root / name).is_dir()]
    return [f"in {root}: {', '.join(assets)}; get them with `bash scripts/_download_assets.sh` there"] if assets else []


def modules_of(python: str, modules: Sequence[str]) -> dict[str, str | None]:
    """Versions of modules in another interpreter; None for one that it cannot find.

    Raises WorkerEnvironmentError: the interpreter does not run.
    """
    try:
        child = subprocess.run(
            [python, "-I", "-c", LOOK, *modules], capture_output=True, text=True, timeout=LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerEnvironmentError(f"python={python} does not run: {error}") from error
    if child.returncode:
        raise WorkerEnvironmentError(f"python={python} does not run: {child.stderr.strip().splitlines()[-1:]}")
    return json.loads(child.stdout)
