"""The episodes of a Minari dataset as its files hold them: HDF5, Arrow or Parquet, one episode after the other.

Minari's own reader gives an episode per record batch of an Arrow file, of which an episode of 65,536 steps or more has several; and it
decodes every recorded info. Here a folder is an episode, and of the infos only the simulator's states are read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, WorldrlError
from worldrl.core.extras import require
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.offline.columns import fault
from worldrl.data.offline.hdf5 import Hdf5

MAIN = "main_data.hdf5"
FLAT = ("rewards", "terminations", "truncations")
STATES = ("qpos", "qvel")
FORMATS = ("hdf5", "arrow", "parquet")


def episodes(data: Path, metadata: Mapping[str, Any], spaces_of: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give each episode as arrays by Minari's names, with ``seed`` and, where recorded, ``qpos`` and ``qvel``.

    ``metadata`` has ``data_format``, ``total_episodes`` and ``total_steps``; ``spaces_of`` the spaces of
    ``observations`` and ``actions``. ArtefactError where a file, episode or field is missing or damaged.
    """
    total = int(metadata["total_episodes"])
    if metadata["data_format"] == "hdf5":
        with Hdf5(data / MAIN, source=data, field=MAIN) as file:
            for number in range(total):
                yield _hdf5_episode(file, number, spaces_of)
        return
    most = int(metadata["total_steps"]) + total
    for number in range(total):
        yield _arrow_episode(data, number, metadata["data_format"], most, spaces_of)


def _hdf5_episode(file: Hdf5, number: int, spaces_of: Mapping[str, Any]) -> dict[str, Any]:
    name = f"episode_{number}"
    group = file.group(file.content, name, number)
    result = {field: _parts(file, group, space, field, number) for field, space in spaces_of.items()}
    result |= {field: _needed(file, group, field, number) for field in FLAT}
    for state in STATES:
        if (array := file.numbers(group, f"infos/{state}", number)) is not None:
            result[state] = array
    return result | {"seed": _seed(_attribute(group), file.source, number)}


def _parts(file: Hdf5, group: Any, space: spaces.Space[Any], path: str, number: int) -> Any:
    """Return an array, or the arrays of a Dict or Tuple space by its own keys."""
    name = path.rpartition("/")[2]
    if isinstance(space, spaces.Dict):
        keys: dict[Any, str] = {key: str(key) for key in space.spaces}
    elif isinstance(space, spaces.Tuple):
        keys = {index: f"_index_{index}" for index in range(len(space.spaces))}
    else:
        return _needed(file, group, name, number, path)
    group = file.group(group, name, number)
    if (found := file.names(group, number)) != (wanted := sorted(keys.values())):
        raise fault(file.source, number, path, f"has the parts {found}, its space {wanted}; write the dataset again")
    return {key: _parts(file, group, space.spaces[key], f"{path}/{part}", number) for key, part in keys.items()}


def _needed(file: Hdf5, group: Any, name: str, number: int, path: str | None = None) -> NDArray[Any]:
    if (array := file.numbers(group, name, number, field=path)) is None:
        what = "cannot be read (it is missing); the file is damaged or cut short"
        raise fault(file.source, number, path or name, what)
    return array


def _attribute(group: Any) -> Any:
    try:
        return group.attrs.get("seed")
    except Exception as reason:  # h5py raises what it likes on damaged files
        return reason


def _seed(value: Any, source: Path, number: int) -> int | None:
    """Return the seed of an episode's reset; None where none is known."""
    if value is None:
        return None
    if np.ndim(value) == 0 and isinstance(value, int | np.integer) and 0 <= int(value) < 2**63:
        return int(value)
    what = f"cannot be read ({str(value)[:100]!r} is no whole number); copy the dataset again"
    raise fault(source, number, "seed", what)


def _arrow_episode(data: Path, number: int, form: str, most: int, spaces_of: Mapping[str, Any]) -> dict[str, Any]:
    """Read an episode's folder whole, however many record batches it has; actions and flags have a row of padding."""
    arrow = require("pyarrow.dataset", extra="offline")
    folder = data / str(number)
    about = read_json(folder / "metadata.json", error=ArtefactError)
    name = "observations"
    try:
        content = arrow.dataset(str(folder), format=form, ignore_prefixes=["_", ".", "metadata.json"])
        if (rows := content.count_rows()) > most:
            raise fault(data, number, name, f"claims {rows} rows, the metadata say {most} in all; copy it again")
        table = content.to_table()
        result: dict[str, Any] = {}
        for name in (*spaces_of, *FLAT):
            column = _whole(table, name)
            result[name] = _decoded(spaces_of.get(name), column if name == "observations" else column[:-1], name)
        if "infos" in table.column_names:
            infos = _whole(table, "infos")
            known = [field.name for field in infos.type]
            result |= {name: _decoded(None, infos.field(name), name) for name in STATES if name in known}
    except WorldrlError:
        raise
    except Exception as reason:  # pyarrow raises what it likes on damaged files
        text = " ".join(str(reason).split())[:200]
        raise fault(data, number, name, f"cannot be read ({text}); the file is damaged or cut short") from reason
    return result | {"seed": _seed(about.get("seed"), data, number)}


def _whole(table: Any, name: str) -> Any:
    arrow = require("pyarrow", extra="offline")
    column = table.column(name).combine_chunks()
    if isinstance(column, arrow.ChunkedArray):  # where it has no or several chunks
        column = arrow.concat_arrays(column.chunks)
    if column.null_count:
        raise ValueError(f"{column.null_count} of its rows are empty")
    return column


def _decoded(space: spaces.Space[Any] | None, column: Any, name: str) -> Any:
    """Return a column's numbers ``[rows, ...]``, or those of its parts by the space's own keys."""
    if isinstance(space, spaces.Dict):
        return {key: _decoded(part, column.field(str(key)), name) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {index: _decoded(part, column.field(str(index)), name) for index, part in enumerate(space.spaces)}
    types = require("pyarrow", extra="offline").types
    if not (types.is_fixed_size_list(column.type) or types.is_list(column.type)):
        return column.to_numpy(zero_copy_only=False)
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
