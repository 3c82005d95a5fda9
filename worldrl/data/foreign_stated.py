"""The file ``worldrl.json`` of a foreign dataset, its keys one by one, and the features that they name.

What each key means is written in ``foreign_meaning.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.data.foreign_folder import ForeignFolder
from worldrl.data.foreign_selection import OURS

USUAL = {"state": ("observation.state", "state"), "action": ("action", "actions")}
"""Names under which features are published."""


@dataclass(frozen=True)
class Columns:
    """Some numbers of a feature: all of them, or those from ``first`` up to ``last``."""

    feature: str
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.last - self.first


def unclear(folder: ForeignFolder, problem: str, line: str) -> SettingError:
    """Make the error that asks for a line of ``worldrl.json``."""
    return SettingError(f"{folder.info}: {problem}; write it to {folder.path / OURS}, for example {line}")


def wrong(folder: ForeignFolder, key: str, rule: str, value: Any) -> SettingError:
    """Make the error of a key with an impossible value."""
    return SettingError(f"{folder.path / OURS}: {key} must be {rule}, got {value!r}")


def choice(
    folder: ForeignFolder, stated: Mapping[str, Any], key: str, valid: Sequence[str], assumed: list[str], usual: str
) -> str:
    """Return a stated choice; the first is usual, and assumed where none is stated."""
    if key not in stated:
        assumed.append(f"{usual} ({key}: {valid[0]!r})")
        return valid[0]
    if stated[key] not in valid:
        raise wrong(folder, key, f"one of {', '.join(map(repr, valid))}", stated[key])
    return str(stated[key])


def read_columns_of(folder: ForeignFolder, stated: Mapping[str, Any], key: str) -> tuple[Columns, ...]:
    """Return the features that a key names, or the one under its usual name.

    Raises:
        SettingError: no such feature or part, or several usual names.
    """
    given = stated.get(key)
    if given is None:
        usual = [name for name in USUAL.get(key, ()) if name in folder.features]
        if len(usual) != 1:
            vectors = [name for name, feature in folder.features.items() if len(feature.shape) == 1]
            problem = (
                f"{key} could be any of {', '.join(vectors)}" if usual else f"no feature is called {USUAL[key][0]!r}"
            )
            raise unclear(folder, problem, f'{{"{key}": "{vectors[0] if vectors else USUAL[key][0]}"}}')
        given = usual
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise wrong(folder, key, "a feature's name, or several", given)
    return tuple(_part(folder, key, name) for name in names)


def _part(folder: ForeignFolder, key: str, text: str) -> Columns:
    match = re.fullmatch(r"([^\[\]]+)(?:\[(\d+):(\d+)\])?", text)
    name = match[1] if match else text
    feature = folder.features.get(name)
    if match is None or feature is None or feature.is_picture or len(feature.shape) != 1:
        vectors = [one.name for one in folder.features.values() if not one.is_picture]
        raise SettingError(f"{folder.path / OURS}: {key}: no feature {name!r} of numbers{nearest(name, vectors)}")
    first, last = (int(match[2]), int(match[3])) if match[2] else (0, feature.shape[0])
    if not 0 <= first < last <= feature.shape[0]:
        raise wrong(folder, key, f"a part of {name}'s {feature.shape[0]} numbers", text)
    return Columns(name, first, last)


def numbers(table: Any, columns: Sequence[Columns], where: str) -> NDArray[np.float32]:
    """Return numbers of a table's features side by side, float32 ``[rows, size]``.

    Raises:
        ArtefactError: a row has another size, or a number that is not finite.
    """
    found: list[NDArray[np.float32]] = []
    for part in columns:
        rows = table[part.feature].to_pylist()
        try:
            values = np.array(rows, np.float32).reshape(len(rows), -1)
        except (TypeError, ValueError) as reason:
            raise ArtefactError(f"{where}: field {part.feature!r} is not rows of numbers ({reason})") from reason
        if values.shape[1] < part.last:
            raise ArtefactError(
                f"{where}: field {part.feature!r} has {values.shape[1]} numbers a row, info.json says more"
            )
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ArtefactError(
                f"{where}: field {part.feature!r} is not finite at row {row}; write it again without that episode"
            )
        found.append(values[:, part.first : part.last])
    return np.concatenate(found, axis=1)
