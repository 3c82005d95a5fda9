"""LIBERO-PRO's suites, read as data: tasks, instructions, goals and stored states.

Its package has hf-libero's module names and is never imported. Setup keeps of it, under their own names::

    <environment>/libero_pro/bddl_files/<suite>/<task>.bddl
    <environment>/libero_pro/init_files/<suite>/<task>.pruned_init.npz      float64 "states", [50, D]
"""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero import facts
from worldrl.workers.libero.package import LiberoError, files_digest, task_instruction

KINDS: Mapping[str, str] = {
    "bigger_akita_black_bowl": "akita_black_bowl",
    "bigger_alphabet_soup": "alphabet_soup",
    "black_bowl": "akita_black_bowl",
    "blue_ketchup": "ketchup",
    "brown_rack": "wine_rack",
    "green_bbq_sauce": "bbq_sauce",
    "green_butter": "butter",
    "green_chocolate_pudding": "chocolate_pudding",
    "red_basket": "basket",
    "red_cream_cheese": "cream_cheese",
    "red_salad_dressing": "salad_dressing",
    "white_bottle": "wine_bottle",
    "yellow_cabinet": "wooden_cabinet",
    "yellow_milk": "milk",
    "yellow_moka_pot": "moka_pot",
    "yellow_plate": "plate",
    "yellow_stove": "flat_stove",
    "yellow_tomato_sauce": "tomato_sauce",
}
"""Kinds of object in the suites ``object`` that hf-libero lacks → its kind that differs in the model alone."""
REWORDED = ("lan", "task")
"""Changes whose instruction is that of the task's file; the others keep LIBERO's, which is the file's name."""


@dataclass(frozen=True)
class ProTask:
    """One task: instruction, predicates of the goal, movable objects, and stored states float64 ``[50, D]``."""

    instruction: str
    goals: list[list[str]]
    movable: list[str]
    states: NDArray[np.float64]


def folder_of(suite: str) -> str:
    """Name of a suite's folders in the data."""
    return "_".join(facts.PRO_SUITES[suite])


def data_digest(folder: Path) -> str:
    """Digest of the tasks and stored states in a folder."""
    return files_digest(folder, lambda path: path.suffix in (".bddl", ".npz"))


def read_suite(folder: Path, suite: str) -> dict[str, ProTask]:
    """Read a suite's tasks, sorted by name; LiberoError with the command where the data are missing or damaged."""
    if not folder.is_dir() or data_digest(folder) != facts.PRO_DATA:
        state = "are damaged" if folder.is_dir() else "are missing"
        raise LiberoError(f"{suite}: LIBERO-PRO's tasks and states {state} in {folder}; run `worldrl setup libero`")
    named = folder_of(suite)
    files = sorted((folder / "bddl_files" / named).glob("*.bddl"))
    states = folder / "init_files" / named
    return {file.stem: _task(file, states / f"{file.stem}.pruned_init.npz", suite) for file in files}


def _task(file: Path, states: Path, suite: str) -> ProTask:
    text = file.read_text(encoding="utf-8")
    spoken, objects = re.search(r"\(:language ([^)]*)\)", text), re.search(r"\(:objects([^)]*)\)", text)
    if spoken is None or objects is None:
        raise LiberoError(f"{file}: no task of LIBERO: it has no language or no objects")
    reworded = facts.PRO_SUITES[suite][1] in REWORDED
    return ProTask(
        instruction=spoken[1].strip() if reworded else task_instruction(file.stem),
        goals=[goal.split() for goal in re.findall(r"\((\w+ [\w ]+)\)", text.partition("(:goal")[2])],
        movable=[name for line in objects[1].splitlines() for name in line.partition(" - ")[0].split()],
        states=read_states(states),
    )


def read_states(path: Path) -> NDArray[np.float64]:
    """Read one task's stored states; LiberoError for another content. No pickle is loaded."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            states = archive["states"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise LiberoError(f"{path}: no stored states ({error}); run `worldrl setup libero`") from error
    if states.dtype != np.float64 or states.ndim != 2 or len(states) != facts.STORED_STATES:
        found = f"{states.dtype} of shape {states.shape}"
        raise LiberoError(f"{path}: {found}; expected {facts.STORED_STATES} states of float64")
    return states


def add_kinds(assets: Path) -> None:
    """Let hf-libero make LIBERO-PRO's objects; LiberoError where the assets lack one."""
    lacking = [kind for kind in KINDS if not any(assets.glob(f"*/{kind}*"))]
    if lacking:
        raise LiberoError(
            f"the assets in {assets} lack LIBERO-PRO's {', '.join(lacking)}; `worldrl setup libero assets=own` brings them"
        )
    base: Any = importlib.import_module("libero.libero.envs.base_object")
    for kind, like in KINDS.items():
        for known in (base.OBJECTS_DICT, base.VISUAL_CHANGE_OBJECTS_DICT):
            if like in known:
                known[kind] = _other_model(known[like], kind)


def _other_model(parent: Any, kind: str) -> Any:
    """A kind of object with a model of its own, and everything else of another kind."""

    def make(self: Any, name: str = kind, obj_name: str = kind, **more: Any) -> None:
        parent.__init__(self, name, obj_name, **more)

    return type(kind.title().replace("_", ""), (parent,), {"__init__": make})
