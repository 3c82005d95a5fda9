"""The tables of a LeRobotDataset that others made: instructions and episodes, row by row, with what is wrong with a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.external.files import WHOLE, read_columns, read_schema, require_file
from worldrl.data.lerobot.external.info import Info
from worldrl.data.lerobot.external.selection import Selection
from worldrl.data.lerobot.format import INFO_PATH, TASKS_PATH

EPISODE_FILES = "meta/episodes/chunk-*/file-*.parquet"
MAX_NUMBER, MAX_LISTED = 10**9, 1000
"""Numbers of episodes, rows and files are below the first; more missing episodes than the second are not listed."""
COLUMNS = ("episode_index", "tasks", "length", "data/chunk_index", "data/file_index")
FILM_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


@dataclass(frozen=True)
class TableRow:
    """One row of the episode table."""

    index: int  # its number
    rows: int  # how many frames it has; 0 where that is no number
    sentences: tuple[str, ...]  # what the robot is to do
    data: tuple[int, int]  # numbers of the data file's chunk and file
    films: Mapping[str, Any]  # what is written about its films, by column
    fault: str  # why it cannot be read, with file and field; empty where it can be


def whole(value: Any) -> int | None:
    """Return a whole number that is not negative, also of a float such as pandas makes; None of anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def read_sentences(path: Path) -> dict[int, str]:
    """Return instructions by ``task_index``, pandas' index or a column; ArtefactError for other rows."""
    file = path / TASKS_PATH
    require_file(path, file)
    texts = [name for name in read_schema(file).names if name != "task_index"]
    name = "task" if "task" in texts else next(iter(texts), "task")
    table = read_columns(file, ["task_index", name])
    found: dict[int, str] = {}
    for row, (index, text) in enumerate(zip(table["task_index"].to_pylist(), table[name].to_pylist(), strict=True)):
        number = whole(index)
        if number is None or not isinstance(text, str):
            raise ArtefactError(
                f"{file}: row {row} must be a number and an instruction, got {index!r} and {text!r}; {WHOLE}"
            )
        if found.setdefault(number, text) != text:
            raise ArtefactError(
                f"{file}: task_index {number} has two instructions, {found[number]!r} and {text!r}; {WHOLE}"
            )
    return found


def read_table(path: Path, sentences: Mapping[int, str]) -> dict[int, TableRow]:
    """Read all files of the episode table in order; ArtefactError without one, or for a row without a number."""
    files = sorted(path.glob(EPISODE_FILES))
    if not files:
        raise ArtefactError(f"{path / EPISODE_FILES}: no such file; {WHOLE}")
    rows = [row for file in files for row in _rows(path, file, frozenset(sentences.values()))]
    counts = Counter(row.index for row in rows)
    twice = [row for row in rows if counts[row.index] > 1]
    faults = {
        row.index: TableRow(
            row.index, 0, row.sentences, (0, 0), {}, f"{files[0].parent}: episode {row.index} is there twice"
        )
        for row in twice
    }
    return dict(sorted({**{row.index: row for row in rows}, **faults}.items()))


def filmed(path: Path) -> list[str]:
    """Return the cameras about whose films the episode table says something."""
    names = [name for file in sorted(path.glob(EPISODE_FILES)) for name in read_schema(file).names]
    matches = [re.fullmatch(r"videos/(.+)/from_timestamp", name) for name in dict.fromkeys(names)]
    return [match[1] for match in matches if match]


def _rows(path: Path, file: Path, known: Collection[str]) -> Iterator[TableRow]:
    require_file(path, file)
    films = [name for name in read_schema(file).names if name.startswith("videos/")]
    films = [name for name in films if name.rpartition("/")[2] in FILM_COLUMNS]
    for place, row in enumerate(read_columns(file, [*COLUMNS, *films]).to_pylist()):
        index = whole(row["episode_index"])
        if index is None:
            raise ArtefactError(
                f"{file}: row {place}, field 'episode_index' must be a whole number, got {row['episode_index']!r}; {WHOLE}"
            )
        sentences = [row["tasks"]] if isinstance(row["tasks"], str) else row["tasks"]
        sentences = (
            tuple(sentences) if isinstance(sentences, list) and all(isinstance(text, str) for text in sentences) else ()
        )
        fault = _fault(row, sentences, known)
        yield TableRow(
            index=index,
            rows=whole(row["length"]) or 0,
            sentences=sentences,
            data=(whole(row["data/chunk_index"]) or 0, whole(row["data/file_index"]) or 0),
            films={name: row[name] for name in films},
            fault=f"{file}: episode {index}{fault}" if fault else "",
        )


def _fault(row: Mapping[str, Any], sentences: Sequence[str], known: Collection[str]) -> str:
    """Say why an episode cannot be read; empty where it can be."""
    for name in ("length", "data/chunk_index", "data/file_index"):
        if whole(row[name]) is None:
            return f", field {name!r} must be a whole number, got {row[name]!r}"
    if row["length"] < 2:
        return f" has {row['length']:g} rows, and at least 2 are needed"
    if len(sentences) != 1:
        return f", field 'tasks' must be one instruction, got {str(row['tasks'])[:200]}"
    if sentences[0] not in known:
        return f", field 'tasks' is {sentences[0]!r}, which {TASKS_PATH} does not have"
    return ""


def require_counts(path: Path, info: Info, table: Mapping[int, TableRow], selection: Selection) -> None:
    """ArtefactError where table and ``info.json`` count other episodes, or a number is missing and not left out."""
    where, known = path / INFO_PATH, {*table, *selection.leave_out}
    lost = list(
        islice(
            (n for n in range(max(max(table, default=-1) + 1, info.total_episodes or 0)) if n not in known), MAX_LISTED
        )
    )
    mend = f"{WHOLE}; {selection.mend(lost)}" if 0 < len(lost) < MAX_LISTED else WHOLE
    if info.total_episodes not in (None, len(table), len(known)):
        raise ArtefactError(
            f"{where}: total_episodes is {info.total_episodes}, the episode table has {len(table)}; {mend}"
        )
    if lost:
        raise ArtefactError(f"{path / 'meta/episodes'}: episode {lost[0]} is missing in the episode table; {mend}")


def require_frames(path: Path, info: Info, table: Mapping[int, TableRow], selection: Selection) -> None:
    """ArtefactError where table and ``info.json`` count other rows, unless an episode is wrong or left out."""
    frames = sum(row.rows for row in table.values())
    certain = not selection.leave_out and not any(row.fault for row in table.values())
    if certain and info.total_frames not in (None, frames):
        raise ArtefactError(
            f"{path / INFO_PATH}: total_frames is {info.total_frames}, the episode table has {frames}; {WHOLE}"
        )
