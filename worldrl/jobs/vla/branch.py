"""``branch.*`` of ``worldrl train-vla``: a run takes the first stages of another one, and runs the others with its settings.

A change is tried from the stage at which it counts, beside the run that it changes: what came before is the same.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import RunDirectoryError, SettingError, nearest
from worldrl.core.renames import current_config
from worldrl.core.storage.atomic import atomic_folder
from worldrl.core.storage.jsonfile import differing
from worldrl.core.storage.run import CONFIG, Stage, config_hash, stored_config
from worldrl.recipes.run import with_defaults
from worldrl.rollout.suites.names import RECORDINGS
from worldrl.settings import MAY_CHANGE, WHERE

if TYPE_CHECKING:
    from worldrl.jobs.vla.loop import Loop

TAKEN = "00-branch"
"""The stage that takes the others."""

ROUND = re.compile(r"round-([1-9]\d*)-(.+)")
FIRST = ("01-demonstrations", "01-recordings", "01-looks", "02-policy", "03-before")
EACH_ROUND = (
    "1-practice",
    "1-looks",
    "2-world-model",
    "3-gates",
    "4-idm",
    "4-grasp",
    "4-improve",
    "5-accept",
    "6-distil",
)
LAST = ("04-verify", "05-after", "06-planner-before", "07-planner-after")

READ_ONCE = {
    "seed": FIRST[0], "suite": FIRST[0], "shadows": FIRST[0], "tasks": FIRST[0], "kind": FIRST[0], "domain": FIRST[0],
    "demonstrations": FIRST[0], "data": FIRST[0], "styles": FIRST[0], "cameras": FIRST[0], "state": FIRST[0],
    "policy": "02-policy", "cloning": "02-policy", "supervised": "02-policy",
    "evaluation.episodes": "03-before", "evaluation.seed": "03-before", "evaluation.temperature": "03-before",
    "evaluation.videos": "03-before", "held_out": "round-1-1-practice", "start": "round-1-1-practice",
    "backbone": "round-1-1-practice", "scratch.expert_episodes": "round-1-1-practice",
    "scratch.weights": "round-1-2-world-model", "scratch.training": "round-1-2-world-model",
    "world_model": "round-1-2-world-model", "wan.folder": "round-1-2-world-model", "wan.model": "round-1-2-world-model",
}  # fmt: skip
"""The stage that reads a setting for all that follow; every other setting is read again in each round."""


@dataclass
class Branch:
    """Stages that are taken from another run instead of being run.

    Attributes:
        run: run directory of train-vla whose stages before ``branch.stage`` are copied; null runs every stage.
        stage: first stage that is run, for example round-2-4-improve. Settings that are read before it must be equal.
    """

    run: str | None = None
    stage: str = ""

    def __post_init__(self) -> None:
        """Refuse the one without the other, and a name that no stage has."""
        if (self.run is None) != (not self.stage):
            raise SettingError("branch.run and branch.stage: give both, or none")
        if self.stage and position(self.stage) is None:
            known = (*FIRST, *(f"round-{n}-{part}" for n in (1, 2, 3) for part in EACH_ROUND), *LAST)
            raise SettingError(f"branch.stage: unknown stage {self.stage!r}{nearest(self.stage, known)}")


Place = tuple[int, int, int]


def position(name: str, *, recorded: bool = False) -> Place | None:
    """Place of a stage in the order of a run, None for an unknown name.

    ``recorded``: of suite=recordings, which measures the policy after the gates.
    """
    if recorded and name == "03-before":
        return 1, 1, EACH_ROUND.index("4-idm")
    if name in FIRST:
        return 0, 0, FIRST.index(name)
    if name in LAST:
        return 2, 0, LAST.index(name)
    if (match := ROUND.fullmatch(name)) is not None and match[2] in EACH_ROUND:
        return 1, int(match[1]), EACH_ROUND.index(match[2])
    return None


def precedes(name: str, other: str, *, recorded: bool) -> bool:
    """Whether a run finishes the stage ``name`` before ``other``; False of an unknown one."""
    first, second = position(name, recorded=recorded), position(other, recorded=recorded)
    return first is not None and second is not None and first < second


def take_stages(loop: Loop, schema: Any) -> None:
    """Copy the stages of another run that precede ``branch.stage``, once; the run's clock counts them.

    ``schema`` is the class of the settings. RunDirectoryError (no run of train-vla, or one of its stages is damaged).
    SettingError (a setting differs that the copied stages have read).
    """
    branch = loop.plan.branch
    if branch.run is None or (stage := loop.run.stage(TAKEN)).finished:
        return
    source = Path(branch.run)
    earlier = settings_of(source, schema)
    recorded = earlier["suite"] == RECORDINGS
    changed = differing(earlier, {key: value for key, value in loop.run.config.items() if key in earlier})
    refuse_read(changed, branch, recorded=recorded)
    taken = finished_before(source, branch.stage, recorded=recorded)
    ends = [found.summary["run_wall_s"] for found in taken]  # refuses a damaged stage before anything is copied
    for found in taken:
        with atomic_folder(loop.run.path / "stages" / found.name, needed=size_of(found.folder)) as folder:
            shutil.copytree(found.folder, folder, symlinks=True, dirs_exist_ok=True)
    loop.run.count_earlier(max(ends))
    facts = {"run": branch.run, "stage": branch.stage, "config_hash": config_hash(earlier)}
    loop.finish(stage, {**facts, "taken": [found.name for found in taken], "changed": changed})


def settings_of(source: Path, schema: Any) -> dict[str, Any]:
    """Settings of a run of train-vla under present names, without those that may change at any time."""
    if not any((source / "stages" / name).is_dir() for name in FIRST[:2]):
        raise RunDirectoryError(
            f"branch.run: {source} is no run directory of train-vla; give one with stages/{FIRST[0]}"
        )
    stored = with_defaults(current_config(stored_config(source / CONFIG), "train-vla"), schema)
    return {key: value for key, value in stored.items() if key not in (*MAY_CHANGE, *WHERE, "branch")}


def refuse_read(changed: Mapping[str, list[str]], branch: Branch, *, recorded: bool) -> None:
    """Refuse changed settings that a copied stage has read; SettingError names each, both values, and the stage."""
    read_once = READ_ONCE | ({"held_out": "01-recordings"} if recorded else {})
    found = [
        f"{key}: {old} -> {new} ({stage})"
        for key, (old, new) in changed.items()
        for name, stage in read_once.items()
        if f"{key}.".startswith(f"{name}.") and precedes(stage, branch.stage, recorded=recorded)
    ]
    if found:
        raise SettingError(
            f"branch.run: stages of {branch.run} have read settings that differ: {', '.join(found)}; give the values "
            "of that run, or an earlier branch.stage, or leave branch.* out"
        )


def finished_before(source: Path, stage: str, *, recorded: bool) -> list[Stage]:
    """Finished stages of a run that precede ``stage``; RunDirectoryError where there is none."""
    folders = sorted((source / "stages").iterdir())
    before = [folder for folder in folders if precedes(folder.name, stage, recorded=recorded)]
    found = [item for folder in before if (item := Stage(folder.name, folder, "")).finished]
    if not found:
        raise RunDirectoryError(f"branch.run: {source} has no finished stage before {stage}; give a later branch.stage")
    return found


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def branch_facts(loop: Loop) -> dict[str, Any]:
    """What was taken and changed, for ``result.json``; empty of a run that ran every stage.

    The other run has its folder's name alone: results are published, and paths are of one machine.
    """
    if loop.plan.branch.run is None:
        return {}
    facts = loop.run.stage(TAKEN).summary
    named = {"run": Path(facts["run"]).resolve().name}
    return {"branch": named | {name: facts[name] for name in ("stage", "config_hash", "taken", "changed")}}


def branch_notes(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader of the page must know of it."""
    if (facts := metrics.get("branch")) is None:
        return ()
    changed = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in facts["changed"].items()) or "nothing"
    return (
        f"The stages before {facts['stage']} are copies from {facts['run']}; the wall time counts them.",
        f"Settings changed from there: {changed}.",
    )
