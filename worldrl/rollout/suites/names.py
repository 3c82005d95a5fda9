"""Names of the external suites, without anything that plays them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points

from worldrl.core.errors import SettingError, nearest

GROUP = "worldrl.suites"
"""Entry points of other packages' adapters, ``name = "module:Class"``."""
EMBEDDED = "embedded"
RECORDINGS = "recordings"
"""Not a simulator: a dataset of recordings alone. Only ``train-vla`` has it."""
LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90", "libero_spatial@lerobot")
LIBERO_HELD = tuple(f"libero_{name}@held" for name in ("spatial", "object", "goal", "10", "90"))
CHANGES = ("lan", "object", "swap", "task")
_CHANGED = [f"libero_pro_{name}_{change}" for name in ("spatial", "object", "goal", "10") for change in CHANGES]
LIBERO_PRO = (*_CHANGED, *(f"{name}@held" for name in _CHANGED))
FAMILIES = {
    "libero": LIBERO + LIBERO_HELD + LIBERO_PRO,
    "maniskill": ("maniskill", "maniskill_cubes"),
    "robotwin": ("robotwin_clean", "robotwin_randomised"),
    "isaac": ("isaac_reach", "isaac_lift", "isaac_drawer", "isaac_stack"),
}
"""Environment (of ``worldrl setup``) → its suites."""
ADAPTERS = {
    "metaworld_mt10": ("metaworld", "worldrl.workers.metaworld.adapter:MetaWorldMt10"),
    "metaworld_mt10_20hz": ("metaworld", "worldrl.workers.metaworld.held:MetaWorldMt10At20Hz"),
    "fetch": ("fetch", "worldrl.workers.fetch.adapter:Fetch"),
    "pusht": ("pusht", "worldrl.workers.pusht.adapter:PushT"),
    "aloha": ("aloha", "worldrl.workers.aloha.adapter:Aloha"),
}
"""Suites of adapters that come with worldrl: environment of ``worldrl setup``, and class."""
SUITE_PYTHON = "interpreter that has the simulator of suite=FILE.py:Class; empty takes this one"

SHADOWS = "LIBERO: the vendor's shadows; false renders eight times faster on a CPU, but other images"

CLIP_ACTIONS = "LIBERO's own files: move actions beyond [-1, 1] to it; otherwise they are refused"


def suite_names() -> list[str]:
    """Every external suite that comes with worldrl."""
    return [name for names in (*FAMILIES.values(), tuple(ADAPTERS)) for name in names]


SHORT = f"libero_pro_NAME_CHANGE (NAME spatial, object, goal or 10; CHANGE {', '.join(CHANGES)})"
"""LIBERO-PRO's 16 suites in one word."""
SHOWN = [name for name in suite_names() if name not in (*LIBERO_PRO, *LIBERO_HELD)]
SUITE = f"embedded, {', '.join(SHOWN)}, {SHORT}, or an adapter of your own as FILE.py:Class; LIBERO's also as NAME@held"
"""Help text of the setting."""


def plugins() -> dict[str, str]:
    """Name and class of the adapters that installed packages bring; imports none."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def require_suite_name(value: str, *more: str) -> None:
    """Refuse a ``suite`` that does not exist; nothing is started. SettingError names the valid ones and the nearest.

    ``more`` are names that the command has besides.
    """
    names = [EMBEDDED, *more, *suite_names(), *plugins()]
    if value not in names:
        own_adapter(value, names)


def own_adapter(value: str, names: Iterable[str]) -> tuple[str, str]:
    """File and class of ``FILE.py:Class``; SettingError names the valid ``names`` for any other value."""
    file, _, name = value.rpartition(":")
    if name.isidentifier() and file.endswith(".py"):
        return file, name
    raise SettingError(
        f"suite: unknown value {value!r}{nearest(value, names)}; an adapter of your own is FILE.py:Class"
    )


def choose_suite_tasks(tasks: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the named tasks, or all ``names`` of a suite; SettingError for an unknown task, or one named twice."""
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    if len(set(tasks)) < len(tasks):
        raise SettingError(f"tasks: each may be named once, got {list(tasks)}")
    return list(tasks or names)
