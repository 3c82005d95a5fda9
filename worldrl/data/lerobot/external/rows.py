"""Rows of external LeRobotDatasets: what is written twice must agree, in the episode table, ``info.json`` and data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.external.files import WHOLE, files_like, read_columns, read_schema, require_file
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.info import Feature
from worldrl.data.lerobot.external.selection import require_known
from worldrl.data.lerobot.external.table import filmed, whole

PLACE = ("episode_index", "frame_index")


def require_rows(folder: ExternalFolder) -> None:
    """Hold the data files' rows against the episode table; only their episodes' numbers are read.

    ArtefactError for other rows than the table says; SettingError where an unknown episode is left out.
    """
    place = folder.places
    faults: dict[int, str] = {}
    seen: set[int] = set(range(max(*place, folder.promised - 1) + 1))
    where, known = f"{folder.info}: field 'data_path'", set(place.values())
    strangers = [file for file in files_like(folder.path, where, folder.data_path) if file not in known]
    for file in (*folder.kept, *strangers):
        here = {episode.index: episode.rows for episode in folder.kept.get(file, ())}
        try:
            counts = episode_counts(folder.path, file)
        except ArtefactError as reason:
            if file in strangers:
                raise ArtefactError(f"{reason}; or move it away: the episode table has no episode there") from reason
            faults |= dict.fromkeys(here, str(reason))
            continue
        seen |= set(counts)
        faults |= _strays(folder, file, counts)
        faults |= {
            index: f"{file}: episode {index} has {counts[index]} rows here, the episode table says {rows}; {WHOLE}"
            for index, rows in here.items()
            if counts[index] != rows
        }
    folder.selection.refuse(faults, folder.numbers)
    require_known(folder.selection, sorted(seen))


def _strays(folder: ExternalFolder, file: Path, counts: Mapping[int, int]) -> dict[int, str]:
    """Episodes with rows in a file where the episode table has none of theirs."""
    kept, place, found = folder.numbers, folder.places, dict[int, str]()
    for index in counts:
        if index in folder.selection.leave_out or place.get(index) == file or (index in place and index not in kept):
            continue
        there = f"places it in {place[index]}" if index in place else "does not have it"
        found[index] = f"{file}: episode {index} has {counts[index]} rows here, and the episode table {there}"
    return found


def episode_counts(path: Path, file: Path) -> Counter[int]:
    """Count the rows of each episode in a data file; ArtefactError where a row has no episode's number."""
    require_file(path, file)
    counts: Counter[int] = Counter()
    column = read_columns(file, ["episode_index"])["episode_index"]
    entries = column.value_counts().to_pylist() if _is_scalar(column.type) else [{"values": column.type, "counts": 0}]
    for entry in entries:
        number = whole(entry["values"])
        if number is None:
            raise ArtefactError(
                f"{file}: field 'episode_index' must be a whole number in every row, got {entry['values']}; {WHOLE}"
            )
        counts[number] += entry["counts"]
    return counts


def unlisted(folder: ExternalFolder, flags: Collection[str]) -> list[str]:
    """Return cameras, and columns of these names, that the tables have and ``info.json`` does not list."""
    features = folder.features
    cameras = {name for name, feature in features.items() if feature.is_image}
    found = [name for name in filmed(folder.path) if name not in cameras]
    schema = read_schema(folder.episodes[0].file)
    for name in schema.names:
        camera = pa.types.is_struct(schema.field(name).type)
        if (camera and name not in cameras) or (name in flags and name not in features):
            found.append(name)
    return found


def read_rows(folder: ExternalFolder, file: Path, columns: Iterable[str]) -> pa.Table:
    """Read features of kept episodes in a data file, with episode and frame; ArtefactError for unsound numbers."""
    here = [episode.index for episode in folder.kept[file]]
    names = list(dict.fromkeys([*PLACE, *columns]))
    table = read_columns(file, names, filters=[("episode_index", "in", here)])
    folder.selection.refuse(number_faults(folder, file, table), folder.numbers)
    return table


def number_faults(folder: ExternalFolder, file: Path, table: pa.Table) -> dict[int, str]:
    """Return what is wrong with the numbers of a table with episode and frame, by episode."""
    found: dict[int, str] = {}
    for name in table.column_names:
        feature = folder.features.get(name)
        if feature is None or feature.is_image or name in (*PLACE, "task_index") or _are_sound(feature, table[name]):
            continue
        for problem, wrong in _problems(feature, table[name]):
            for row in np.flatnonzero(wrong).tolist():
                number, frame = (table[place][row].as_py() for place in PLACE)
                found.setdefault(int(number), f"{file}: episode {number}, field {name!r} {problem.format(frame)}")
    return found


def _are_sound(feature: Feature, column: pa.ChunkedArray) -> bool:
    """Whether float32 numbers have none of the problems, found quickly; False leaves it open."""
    values = column.combine_chunks()
    if pa.types.is_fixed_size_list(values.type) and values.type.list_size == int(np.prod(feature.shape)):
        nested, values = values.null_count, values.flatten()
    else:
        nested = int(feature.shape != (1,))
    sound = not nested and not values.null_count and pa.types.is_float32(values.type) and feature.dtype != "bool"
    return sound and bool(np.isfinite(values.to_numpy()).all())


def _problems(feature: Feature, column: pa.ChunkedArray) -> Sequence[tuple[str, NDArray[np.bool_]]]:
    """Name what may be wrong with rows of a feature, and say for each row whether it is."""
    if not _is_numbers(column.type):
        return [(f"is {column.type} and no row of numbers at row {{}}", np.ones(len(column), np.bool_))]
    missing = column.is_null().to_numpy()
    size = int(np.prod(feature.shape))
    lengths, values = np.ones(len(column), np.int64), column
    if not _is_scalar(column.type):
        lengths = pc.call_function("list_value_length", [column]).fill_null(0).to_numpy()
        values = pc.call_function("list_flatten", [column])
    owner = np.repeat(np.arange(len(column)), np.where(missing, 0, lengths) if values is not column else 1)
    single = pc.cast(values, pa.float32(), safe=False).fill_null(math.nan).to_numpy()
    broken, unclear = np.zeros((2, len(column)), np.bool_)
    broken[owner[~np.isfinite(single)]] = True
    unclear[owner[(single != 0) & (single != 1)]] = feature.dtype == "bool"
    other = (lengths != size) & ~missing
    first = int(lengths[other][0]) if other.any() else 0
    return (
        ("is missing at row {}", missing),
        (
            f"has {first} numbers at row {{}}, info.json says {size}; if the rows are right, correct the shape there",
            other,
        ),
        ("is not finite at row {}", broken & ~missing),
        ("is neither true nor false at row {}", unclear & ~missing),
    )


def _is_scalar(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_numbers(kind: pa.DataType) -> bool:
    """One number a row, or a list of them."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return _is_scalar(kind) or (lists and _is_scalar(kind.value_type))
