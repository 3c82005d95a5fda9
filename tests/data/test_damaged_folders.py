"""Random damage to LeRobotDatasets of others: the episodes are the undamaged ones, or one line says what is wrong.

Units under test: ``worldrl.data.foreign_*`` through ``EpisodeDataset.open``. What is changed is written twice in a folder, is
covered by a checksum, or means nothing; so nothing may come out that differs. Films are truncated and removed, not flipped.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import WorldrlError
from worldrl.data.lerobot.dataset import EpisodeDataset

JUNK: list[Any] = [
    None,
    5,
    -1,
    0,
    1.5,
    True,
    "x",
    "",
    "5",
    [],
    {},
    [1],
    {"a": 1},
    10**30,
    1e300,
    "../x",
    "{x}",
    "\u0000",
    "é" * 400,
]
ARRAYS = ("state", "command", "action", "reward")
FOLDERS, PARTS = 500, 5


def sealed(folder: Path) -> Path:
    """Write every table again, with checksums of its pages."""
    for file in folder.rglob("*.parquet"):
        pq.write_table(pq.read_table(file), file, write_page_checksum=True)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory, libero_demo, publish_lerobot) -> list[Path]:
    """Images in the rows and a success column; films; joints with a ``worldrl.json``."""
    root = tmp_path_factory.mktemp("sources")
    demos = [libero_demo(0, rows=12), libero_demo(1, rows=14, sentence="turn on the stove"), libero_demo(2, rows=12)]
    marked = [{**demo, "next.success": np.arange(len(demo["action"])) == 9} for demo in demos[:2]]
    marked.append({**demos[2], "next.success": np.zeros(12, np.bool_)})
    joints = [
        {
            "sentence": demo["sentence"],
            "observation.state": np.abs(demo["observation.state"][:, :3]),
            "action": np.abs(demo["action"][:, :3]),
            "observation.images.head": demo["observation.images.image"],
        }
        for demo in demos
    ]
    robot = JointEmbodiment(("a", "b", "gripper"), (0,) * 3, (2,) * 3, (30,) * 3, 10).to_json()
    stated = {"robot": robot, "cameras": {"head": "observation.images.head"}, "success": "every episode"}
    folders = [
        publish_lerobot(root / "rows", marked, files=(2, 1)),
        publish_lerobot(root / "films", demos, files=(1, 2), films=(2, 1)),
        publish_lerobot(root / "joints", joints, files=(1, 1, 1)),
    ]
    (folders[2] / "worldrl.json").write_text(json.dumps(stated | {"gripper": {"open": 0, "closed": 1}}))
    return [sealed(folder) for folder in folders]


def contents(folder: Path) -> list[dict[str, Any]]:
    """Everything that an episode holds, cameras under the names of their features."""
    found: list[dict[str, Any]] = []
    for episode in EpisodeDataset.open(folder):
        arrays = {name: getattr(episode, name).tobytes() for name in ARRAYS}
        cameras = episode.meta["lerobot"]["cameras"]
        views = {f"{name} is {feature}": episode.view(name).tobytes() for name, feature in cameras.items()}
        found.append({**arrays, **views, "instruction": episode.instruction, "index": episode.meta["index"]})
    return found


# --- damage ---


def damage_json(file: Path, draw: np.random.Generator) -> str:
    """Change, remove or add one value, at any depth."""
    body = json.loads(file.read_text())
    place: Any = body
    names: list[Any] = []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        names.append(keys[int(draw.integers(len(keys)))])
        below = place[names[-1]]
        if not isinstance(below, dict | list) or not below or draw.random() < 0.2:
            break
        place = below
    value, kind = JUNK[int(draw.integers(len(JUNK)))], int(draw.integers(3))
    if kind == 0:
        del place[names[-1]]
    elif kind == 1 and isinstance(place, dict):
        place[names[-1] + "_"] = place.pop(names[-1])
    else:
        place[names[-1]] = value
    file.write_text(json.dumps(body))
    return f"{names} {('removed', 'renamed')[kind] if kind < 2 else value!r}"


def retyped(column: pa.ChunkedArray, draw: np.random.Generator) -> pa.Array:
    """The same values in a type that pandas or a careless writer makes of them, or other values."""
    values = column.to_pylist()
    kind = int(draw.integers(5))
    if kind == 0 and all(isinstance(value, int | float) for value in values):
        return pa.array([float(value) for value in values], pa.float64())
    if kind == 1:
        return pa.array([str(value) for value in values])
    if kind == 2:
        return pa.array([[value] for value in values])
    if kind == 3:
        return pa.array([None] * len(values), column.type)
    return pa.array(list(range(len(values), 0, -1)))


def damage_table(file: Path, draw: np.random.Generator) -> str:
    table = pq.read_table(file)
    column = int(draw.integers(table.num_columns))
    name, rows, row = table.column_names[column], table.num_rows, int(draw.integers(table.num_rows))
    kind = int(draw.integers(8))
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.set_column(column, name, retyped(table[name], draw))
    elif kind == 2:
        values = table[name].to_pylist()
        table = table.set_column(column, name, pa.array([*values[:row], None, *values[row + 1 :]], table[name].type))
    elif kind == 3:
        table = table.take(draw.permutation(rows))
    elif kind == 4:
        table = table.slice(0, row) if draw.random() < 0.5 else table.slice(row + 1)
    elif kind == 5:
        table = pa.concat_tables([table, table.slice(row, 1)])
    elif kind == 6:
        table = table.rename_columns([f"{n}_" if n == name else n for n in table.column_names])
    else:
        table = table.append_column("more", pa.array([0] * rows))
    pq.write_table(table, file, write_page_checksum=True)
    return f"{name} row {row} kind {kind}"


def damage_bytes(file: Path, draw: np.random.Generator) -> str:
    content = bytearray(file.read_bytes())
    kind, place = int(draw.integers(6)), int(draw.integers(len(content)))
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.write_bytes(content[:place])
    elif kind == 2 and draw.random() < 0.5:
        file.unlink()
        if draw.random() < 0.5:
            file.mkdir()
        else:
            os.mkfifo(file)
    elif file.suffix != ".mp4":
        content[place] ^= 1 << int(draw.integers(8))
        file.write_bytes(content)
    return f"byte {place} of {len(content)} kind {kind}"


def damage(folder: Path, draw: np.random.Generator) -> str:
    """Change one thing, and say which."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "worldrl.json")
    tables = [file for file in files if file.suffix == ".parquet"]
    kinds: list[tuple[list[Path], Callable[[Path, np.random.Generator], str]]] = [
        ([folder / "meta/info.json"], damage_json), (tables, damage_table), (files, damage_bytes),
    ]  # fmt: skip
    candidates, change = kinds[int(draw.integers(3))]
    file = candidates[int(draw.integers(len(candidates)))]
    return f"{file.relative_to(folder)}: {change(file, draw)}"


@pytest.mark.parametrize("part", range(PARTS))
def test_damage_is_harmless_or_named_in_one_line(part: int, sources: list[Path], tmp_path: Path) -> None:
    truth = [contents(source) for source in sources]
    folder, wrong, refused = tmp_path / "damaged", [], 0
    for seed in range(part, FOLDERS, PARTS):
        shutil.copytree(sources[seed % len(sources)], folder)
        what = damage(folder, np.random.default_rng(seed))
        try:
            if contents(folder) != truth[seed % len(sources)]:
                wrong.append(f"seed {seed}: other episodes after {what}")
        except WorldrlError as error:
            refused += 1
            if "\n" in str(error) or str(folder) not in str(error):
                wrong.append(f"seed {seed}: {error!r} after {what}")
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__} {error} after {what}")
        shutil.rmtree(folder)
    assert wrong == []
    assert FOLDERS // PARTS // 3 < refused < FOLDERS // PARTS
