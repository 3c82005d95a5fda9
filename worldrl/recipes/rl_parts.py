"""Names of settings become RL methods and their parts: lookups of commands in the registries."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from worldrl.methods.rl.config import PartNames, Parts
from worldrl.registry import ADVANTAGES, ALIGNMENTS, BUDGETS, CONTROLS, LOSSES, SELECTORS, START_SAMPLERS
from worldrl.settings import one_of

if TYPE_CHECKING:
    from worldrl.methods.alignment.align import MethodConfigs
    from worldrl.methods.alignment.task import AlignmentTask
    from worldrl.methods.rl.method import Method

IMPROVEMENT, ALIGNMENT = "improvement.grpo.parts", "alignment.parts"
"""Settings that name parts: of train-vla, of align-world-model."""
REGISTRIES = {
    "advantage": ADVANTAGES,
    "selection": SELECTORS,
    "starts": START_SAMPLERS,
    "budget": BUDGETS,
    "loss": LOSSES,
    "control": CONTROLS,
}
"""Field of :class:`PartNames` → where its names are looked up."""


def open_parts(names: PartNames, setting: str) -> Parts:
    """Import the named parts of ``setting``; empty names are left to the method. SettingError names the nearest."""
    given = {field.name: getattr(names, field.name) for field in fields(PartNames)}
    for kind, name in given.items():
        if name:
            one_of(f"{setting}.{kind}", name, REGISTRIES[kind].names())
    return Parts(**{kind: REGISTRIES[kind].get(name) for kind, name in given.items() if name})


def make_method(name: str, task: AlignmentTask, configs: MethodConfigs) -> Method:
    """Make the alignment method called ``name``; a plug-in's gets no settings. SettingError with the nearest name where there is none."""
    make = ALIGNMENTS.get(name)
    return make(task, getattr(configs, name, None), open_parts(task.config.parts, ALIGNMENT))
