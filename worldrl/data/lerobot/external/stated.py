"""The file ``worldrl.json`` of an external dataset, its keys one by one (see ``meaning.py``), and their features."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.data.lerobot.external.folder import ExternalFolder, Feature
from worldrl.data.lerobot.external.selection import KEYS, OURS

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


@dataclass
class Draft:
    """What is found out about a folder while it is opened."""

    # Of a `worldrl.json` that would say all of it: stated, found or guessed.
    entries: dict[str, Any] = field(default_factory=dict)
    # What is unknown or contradictory; with one of them the folder does not open.
    problems: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)  # what nobody stated and is taken so, in clauses

    def ask(self, problem: str) -> None:
        """Note something that the user has to say; its entry is a guess."""
        self.problems.append(problem)

    def assume(self, text: str) -> None:
        """Note something that is taken so."""
        self.assumed.append(text)

    def require_answers(self, folder: ExternalFolder) -> None:
        """SettingError with all problems at once, and with the whole ``worldrl.json`` to write."""
        if self.problems:
            line = json.dumps({key: self.entries[key] for key in KEYS if key in self.entries}, ensure_ascii=False)
            raise unclear(folder, "; ".join(self.problems), line)


def unclear(folder: ExternalFolder, problem: str, line: str) -> SettingError:
    """Make the error that asks for a line of ``worldrl.json``, whose guesses the user corrects."""
    return SettingError(
        f"{folder.info}: {problem}; write it to {folder.path / OURS} and correct what is guessed, for example {line}"
    )


def wrong(folder: ExternalFolder, key: str, rule: str, value: Any) -> SettingError:
    """Make the error of a key with an impossible value."""
    return SettingError(f"{folder.path / OURS}: {key} must be {rule}, got {value!r}")


def choice(
    folder: ExternalFolder, stated: Mapping[str, Any], key: str, valid: Sequence[str], draft: Draft, usual: str
) -> str:
    """Return a stated choice; the first is usual, and assumed where none is stated."""
    if key not in stated:
        draft.assume(f"{usual} ({key}: {valid[0]!r})")
        return valid[0]
    if stated[key] not in valid:
        raise wrong(folder, key, f"one of {', '.join(map(repr, valid))}", stated[key])
    return str(stated[key])


def read_columns_of(folder: ExternalFolder, stated: Mapping[str, Any], key: str) -> tuple[Columns, ...]:
    """Return the features that a key names, or the one under its usual name; SettingError for none or several."""
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


def _part(folder: ExternalFolder, key: str, text: str) -> Columns:
    match = re.fullmatch(r"([^\[\]]+)(?:\[(?:(\d+):(\d+)|([^\[\]]+))\])?", text)
    name = match[1] if match else text
    feature = folder.features.get(name)
    if match is None or feature is None or feature.is_image or len(feature.shape) != 1:
        vectors = [one.name for one in folder.features.values() if not one.is_image]
        raise SettingError(f"{folder.path / OURS}: {key}: no feature {name!r} of numbers{nearest(name, vectors)}")
    if match[4]:
        return _labelled(folder, key, feature, match[4])
    first, last = (int(match[2]), int(match[3])) if match[2] else (0, feature.shape[0])
    if not 0 <= first < last <= feature.shape[0]:
        raise wrong(folder, key, f"a part of {name}'s {feature.shape[0]} numbers", text)
    return Columns(name, first, last)


def _labelled(folder: ExternalFolder, key: str, feature: Feature, label: str) -> Columns:
    """One number of a feature, by its own name."""
    if feature.labels.count(label) != 1:
        there = nearest(label, feature.labels) if feature.labels else "; info.json gives its numbers no names"
        raise SettingError(f"{folder.path / OURS}: {key}: {feature.name} has no number {label!r}{there}")
    place = feature.labels.index(label)
    return Columns(feature.name, place, place + 1)


def labels_of(folder: ExternalFolder, columns: Sequence[Columns]) -> tuple[str, ...]:
    """Names of numbers side by side; empty where info.json does not name them all, or names one twice."""
    found = [label for part in columns for label in folder.features[part.feature].labels[part.first : part.last]]
    whole = len(found) == sum(part.size for part in columns) and len(set(found)) == len(found)
    return tuple(found) if whole else ()


def by_name(
    folder: ExternalFolder, key: str, columns: tuple[Columns, ...], names: Sequence[str], *, own: bool
) -> tuple[Columns, ...]:
    """Choose and order numbers by the robot's names, where the columns have those names; others stay as they are.

    SettingError where columns have only some of the robot's ``own`` names; publishers name a tool's numbers as they
    like.
    """
    labels = labels_of(folder, columns)
    known = set(labels) & set(names)
    if not known or labels == tuple(names):
        return columns
    missing = [name for name in names if name not in labels]
    if missing and not own:
        return columns
    if missing:
        raise SettingError(
            f"{folder.path / OURS}: robot.names: {key} has no number {missing[0]!r}{nearest(missing[0], labels)}; "
            f"its numbers are {', '.join(labels)}"
        )
    places = [(part.feature, place) for part in columns for place in range(part.first, part.last)]
    chosen = (places[labels.index(name)] for name in names)
    return tuple(Columns(feature, place, place + 1) for feature, place in chosen)


def numbers(table: Any, columns: Sequence[Columns], where: str) -> NDArray[np.float32]:
    """Return features side by side, float32 ``[rows, size]``; ArtefactError for other sizes or not finite ones."""
    found: list[NDArray[np.float32]] = []
    for part in columns:
        try:
            values = _matrix(table[part.feature])
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


def scalars(table: Any, name: str, file: Path) -> NDArray[np.float64]:
    """Return one number a row, which may be wrapped into a list of one; ArtefactError for several."""
    try:
        return np.array(table[name].to_pylist(), np.float64).reshape(len(table))
    except (TypeError, ValueError) as reason:
        raise ArtefactError(f"{file}: field {name!r} is not one number a row ({reason}); write it again") from reason


def _matrix(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Rows of a column as float32 ``[rows, size]``; Python lists only where Arrow has no plain numbers."""
    rows, flat = len(column), column.combine_chunks()
    fixed = pa.types.is_fixed_size_list(flat.type)
    if (fixed or pa.types.is_list(flat.type)) and not flat.null_count:
        inner, sizes = flat.flatten(), np.zeros(1) if fixed else np.diff(flat.offsets.to_numpy())
        if not inner.null_count and pa.types.is_primitive(inner.type) and np.ptp(sizes) == 0:
            return inner.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)
    return np.array(column.to_pylist(), np.float32).reshape(rows, -1)
