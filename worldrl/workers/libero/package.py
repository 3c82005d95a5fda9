"""hf-libero's installed package: versions, tasks, assets and rendering, without an import of its training half."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worldrl.workers.libero import facts
from worldrl.workers.link.boot import load_file
from worldrl.workers.link.server import Refusal

PHYSICAL = (".py", ".xml", ".json", ".stl", ".msh")
"""Endings of files that affect physics; visual textures and meshes do not."""


class LiberoError(Refusal):
    """The environment differs from the protocol's: packages, assets or physics."""


def task_instruction(name: str) -> str:
    """The instruction in a task's file name, as published policies use it."""
    return " ".join(re.sub(r"^[A-Z_]+SCENE\d+_", "", name).split("_"))


def assets_digest(folder: Path) -> str:
    """SHA-256 (16 hex digits) of assets without ``.md`` files; the same with LIBERO-PRO's files beside them."""
    digest = files_digest(folder, lambda path: path.suffix != ".md")
    return facts.OWN_ASSETS if digest == facts.ASSETS_WITH_PRO else digest


def sources_digests(root: Path, tasks: Path) -> dict[str, str]:
    """Digests of the sources of the physics by package, since versions hide edits; ``bddl``: the suite's ``tasks``."""
    robosuite = importlib.util.find_spec("robosuite")
    if robosuite is None or not robosuite.submodule_search_locations:
        raise LiberoError("robosuite is not installed in this environment; run `worldrl setup libero`")

    def deciding(path: Path) -> bool:
        return path.suffix in PHYSICAL

    return {
        "bddl": files_digest(tasks, lambda path: path.suffix == ".bddl"),
        "libero": files_digest(root / "envs", deciding),
        "robosuite": files_digest(Path(next(iter(robosuite.submodule_search_locations))), deciding),
    }


def files_digest(folder: Path, counts: Callable[[Path], bool]) -> str:
    """SHA-256 (16 hex digits) over the names and content of a folder's files that count."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and counts(path)):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def require_packages(physics: str) -> dict[str, str]:
    """Return the exact packages of a protocol version; LiberoError where others are installed."""
    if physics not in facts.PHYSICS:
        raise LiberoError(f"physics {physics!r}: known are {', '.join(facts.PHYSICS)}")
    wanted = facts.PHYSICS[physics]
    found = {name: version(name) for name in wanted}
    if found != wanted:
        raise LiberoError(f"libero@{physics} means {dict(wanted)}, installed are {found}; run `worldrl setup libero`")
    return found


def package_root() -> Path:
    """Folder ``libero/libero`` of the installed package, found without importing it."""
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise LiberoError("hf-libero is not installed in this environment; run `worldrl setup libero`")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


def task_names(root: Path) -> dict[str, list[str]]:
    """Names of each suite's tasks, in the benchmark's order; read without the package's imports of torch."""
    return load_file("libero_task_map", root / "benchmark" / "libero_suite_task_map.py").libero_task_map


def find_assets(root: Path, given: str) -> Path:
    """Return the assets' folder; LiberoError with place and remedy where there are none."""
    folder = Path(given) if given else root / "assets"
    if not (folder / "scenes").is_dir():
        raise LiberoError(
            f"LIBERO's assets (meshes, textures) are not in {folder}; `worldrl setup libero` installs them, and "
            "`worldrl setup libero assets=FOLDER` takes a folder of yours"
        )
    return folder


def draw_plainly() -> None:
    """Build every later model without shadows and anti-aliasing."""
    base = importlib.import_module("robosuite.environments.base").MujocoEnv
    original = base._initialize_sim

    def initialize(self: Any, xml_string: str | None = None) -> None:
        original(self, xml_string)
        quality = self.sim.model._model.vis.quality
        quality.shadowsize = quality.offsamples = 0

    base._initialize_sim = initialize
