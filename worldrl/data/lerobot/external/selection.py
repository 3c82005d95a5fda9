"""Which episodes of an external LeRobotDataset are read: ``leave_out`` and ``tasks`` of its ``worldrl.json``.

An unreadable episode stops the folder only where it is kept; the error has the line that leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.lerobot.external.files import WHOLE, require_file
from worldrl.data.lerobot.format import OURS

KEYS = (
    "robot", "state", "action", "command", "cameras", "image_size", "fit", "pictures", "gripper", "clip_actions",
    "observed", "success", "tasks", "leave_out",
)  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """What is kept."""

    file: Path  # the `worldrl.json`, which need not exist
    leave_out: frozenset[int]  # numbers of episodes that are not read
    tasks: Mapping[str, str]  # instruction to task name; empty keeps all

    def keeps(self, episode: int, sentences: Collection[str]) -> bool:
        """Whether an episode is read: not left out, and about one of the tasks, or about nobody knows what."""
        about = not self.tasks or not sentences or any(sentence in self.tasks for sentence in sentences)
        return about and episode not in self.leave_out

    def mend(self, episodes: Collection[int]) -> str:
        """Return the words that say how to read the dataset without these episodes."""
        numbers = sorted({*self.leave_out, *episodes})
        return f'to read the others, write "leave_out": {numbers} to {self.file}'

    def refuse(self, faults: Mapping[int, str], kept: Collection[int]) -> None:
        """ArtefactError where an episode has a fault; ``kept`` are all that are kept."""
        if not faults:
            return
        first = min(faults)
        more = f" (the first of {len(faults)} such episodes)" if len(faults) > 1 else ""
        others, text = set(kept) - set(faults), faults[first].removesuffix(f"; {WHOLE}")
        again = "" if others and text == faults[first] else f"; {WHOLE}"
        mend = f"; {self.mend(faults)}" if others else ""
        raise ArtefactError(f"{text}{more}{again}{mend}")


def read_ours(path: Path) -> dict[str, Any]:
    """Read ``worldrl.json`` of a dataset, if any; ArtefactError for other than JSON, SettingError for unknown keys."""
    file = path / OURS
    if not os.path.lexists(file):
        return {}
    require_file(path, file)
    stated = read_json(file, error=ArtefactError)
    for key in stated:
        if key not in KEYS:
            raise SettingError(f"{file}: unknown key {key!r}{nearest(key, KEYS)}")
    return stated


def read_selection(path: Path, sentences: Collection[str]) -> Selection:
    """Read what is kept; ArtefactError for other than JSON, SettingError for an impossible key or value."""
    stated, file = read_ours(path), path / OURS
    tasks, left = stated.get("tasks", {}), stated.get("leave_out", [])
    if not isinstance(tasks, dict) or not all(isinstance(name, str) for name in tasks.values()):
        raise SettingError(f"{file}: tasks must be names by instruction, got {tasks!r}")
    for sentence in tasks:
        if sentence not in sentences:
            raise SettingError(f"{file}: tasks: no episode is about {sentence!r}{nearest(sentence, sentences)}")
    if not isinstance(left, list) or not all(type(number) is int and number >= 0 for number in left):
        raise SettingError(f"{file}: leave_out must be a list of episode numbers, for example [3, 7], got {left!r}")
    return Selection(file, frozenset(left), tasks)


def require_known(selection: Selection, known: Sequence[int]) -> None:
    """SettingError for a ``leave_out`` with a number that no episode has."""
    for number in sorted(selection.leave_out - set(known)):
        raise SettingError(
            f"{selection.file}: leave_out: there is no episode {number}; the last one is {max(known, default=0)}"
        )
