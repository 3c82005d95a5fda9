"""Which episodes of an external dataset succeeded: the column that says it, one number a row or one an episode.

``next.done`` says only that an episode ended, and a reward is success only where somebody says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldrl.data.lerobot.external.files import read_columns, read_schema
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.rows import read_rows
from worldrl.data.lerobot.external.stated import Draft, scalars, wrong
from worldrl.data.lerobot.external.table import EPISODE_FILES

EVERY, NONE = "every episode", "no episode"
NAMES = ("next.success", "success", "is_success", "next.is_success", "task_success", "episode_success")
"""Under which success is published."""
REWARD = "next.reward"
OF_EPISODES = "meta/episodes:"
"""What stands before the name of a column of the episode table."""


def read_success(folder: ExternalFolder, stated: Mapping[str, Any], draft: Draft) -> str:
    """Return where success stands: feature, column of the episode table, ``every episode``, ``no episode``."""
    flags = [feature.name for feature in folder.features.values() if feature.shape == (1,)]
    table = [OF_EPISODES + name for name in _episode_columns(folder)]
    if "success" in stated:
        given = stated["success"]
        if given not in (EVERY, NONE, *flags, *table):
            known = ", ".join([*flags, *(name for name in table if name.removeprefix(OF_EPISODES) in NAMES)])
            raise wrong(folder, "success", f"{EVERY!r}, {NONE!r}, or a feature of one number ({known})", given)
        return str(given)
    found = [name for name in (*NAMES, *(OF_EPISODES + name for name in NAMES)) if name in (*flags, *table)]
    if len(found) == 1:
        return found[0]
    if found:
        draft.ask(f"success may be any of {', '.join(found)}")
        return found[0]
    if REWARD in folder.features:
        draft.ask(f"{REWARD!r} is there and {NAMES[0]!r} is not, so what counts as success is unclear")
        return REWARD if _zero_or_one(folder) else EVERY
    draft.ask(
        f"nothing says which episodes succeeded: there is no {NAMES[0]!r} (say {EVERY!r} only if no failure was kept)"
    )
    return EVERY


def succeeded(folder: ExternalFolder, success: str) -> frozenset[int]:
    """Numbers of the kept episodes that succeeded by the episode table; ArtefactError for no truth value."""
    if not success.startswith(OF_EPISODES):
        return folder.numbers if success == EVERY else frozenset()
    name, flags, faults = success.removeprefix(OF_EPISODES), dict[int, bool](), dict[int, str]()
    for file in sorted(folder.path.glob(EPISODE_FILES)):
        table = read_columns(file, ["episode_index", name])
        for index, value in zip(table["episode_index"].to_pylist(), table[name].to_pylist(), strict=True):
            flag = _flag(value)
            flags[int(index)] = flag is True
            if flag is None and index in folder.numbers:
                faults[int(index)] = (
                    f"{file}: field {name!r} must be true, false or a number, episode {index:g} has {str(value)[:80]!r}; "
                    f'write {{"success": "{EVERY}"}} or name another column in worldrl.json'
                )
    folder.selection.refuse(faults, folder.numbers)
    return frozenset(index for index in folder.numbers if flags[index])


def _flag(value: Any) -> bool | None:
    """Whether a number, or a list of one, is above 0; None where it is no number."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return bool(value > 0) if isinstance(value, bool | int | float) and math.isfinite(value) else None


def is_feature(success: str) -> bool:
    """Whether a feature says it, row by row."""
    return success not in (EVERY, NONE) and not success.startswith(OF_EPISODES)


def _episode_columns(folder: ExternalFolder) -> list[str]:
    file = next(iter(sorted(folder.path.glob(EPISODE_FILES))))
    return [name for name in read_schema(file).names if not name.startswith(("stats/", "videos/", "data/"))]


def _zero_or_one(folder: ExternalFolder) -> bool:
    """Whether rewards are 0 and 1 only, as far as the first file says."""
    file = folder.episodes[0].file
    return bool(np.isin(scalars(read_rows(folder, file, [REWARD]), REWARD, file), (0.0, 1.0)).all())
