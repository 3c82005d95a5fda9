"""Neighbours of reported faults, against real commands: each runs, or is refused in one line that names what is wrong.

A case is a change of a good folder, the command, and the words of the refusal; no words mean that it must run.
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

from worldrl.cli import OK, USER_ERROR, main

DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
OURS, INFO, TASKS = "worldrl.json", "meta/info.json", "meta/tasks.parquet"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory, libero_demo, publish_lerobot):
    folder = publish_lerobot(
        tmp_path_factory.mktemp("lerobot") / "libero", [libero_demo(number) for number in range(3)]
    )
    (folder / OURS).write_text('{"robot": "libero", "success": "every episode"}')
    return folder


def text(file: str, content: str | bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def pipe(file: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change


def link(file: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).symlink_to(target)

    return change


def inform(raw: str | None = None, **values: Any) -> Change:
    """Change fields of info.json; ``raw`` replaces the number of ``fps`` as it is written."""

    def change(folder: Path) -> None:
        content = json.dumps(json.loads((folder / INFO).read_text()) | values)
        if raw is not None:
            stated = json.loads(content)["fps"]
            content = content.replace(f'"fps": {stated}', f'"fps": {raw}')
        (folder / INFO).write_text(content)

    return change


def column(file: str, name: str, make: Callable[[list[Any]], Any]) -> Change:
    def change(folder: Path) -> None:
        table = pq.read_table(folder / file)
        pq.write_table(
            table.set_column(table.column_names.index(name), name, make(table[name].to_pylist())), folder / file
        )

    return change


def rows(make: Callable[[pa.Table], pa.Table]) -> Change:
    return lambda folder: pq.write_table(make(pq.read_table(folder / DATA)), folder / DATA)


def sentence(words: str) -> Change:
    def change(folder: Path) -> None:
        table = pq.read_table(folder / TASKS)
        name = next(name for name in table.column_names if name != "task_index")
        column(TASKS, name, lambda old: pa.array([words] * len(old)))(folder)
        column(EPISODES, "tasks", lambda old: pa.array([[words]] * len(old)))(folder)

    return change


def shuffled(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(0).permutation(len(table)))


def twice(table: pa.Table) -> pa.Table:
    return table.append_column("action", table["action"])


CASES: dict[str, tuple[Change, str]] = {
    "unchanged": (lambda _: None, ""),
    "nested JSON": (text(OURS, "[" * 100_000 + "]" * 100_000), "worldrl.json: not valid JSON (nested too deeply)"),
    "5,000 digits": (inform("9" * 5000), "is more than a number may be"),
    "NaN": (inform("NaN"), "NaN is not a JSON number"),
    "Infinity": (text(OURS, '{"image_size": Infinity}'), "Infinity is not a JSON number"),
    "UTF-16": (text(OURS, '{"robot": "libero"}'.encode("utf-16")), "'utf-8' codec can't decode"),
    "byte-order mark": (text(OURS, b'\xef\xbb\xbf{"robot": "libero", "success": "every episode"}'), ""),
    "key twice": (text(OURS, '{"robot": "libero", "robot": "x"}'), "key 'robot' appears twice"),
    "pipe, ours": (pipe(OURS), "worldrl.json: not a regular file"),
    "pipe, info.json": (pipe(INFO), "meta/info.json: not a regular file"),
    "link outside": (link(TASKS, os.devnull), "not a regular file"),
    "one index for all rows": (column(DATA, "episode_index", lambda old: pa.array([0] * len(old))), "episode 0 has"),
    "index twice": (
        column(EPISODES, "episode_index", lambda _: pa.array([0, 1, 1])),
        "total_episodes is 3, the episode",
    ),
    "no length": (column(EPISODES, "length", lambda old: pa.array([0, *old[1:]])), "episode 0 has 0 rows"),
    "no rows": (rows(lambda table: table.slice(0, 0)), "episode 0 has 0 rows here"),
    "text": (column(DATA, "action", lambda old: pa.array([[str(x) for x in row] for row in old])), "no row of numbers"),
    "null": (column(DATA, "action", lambda old: pa.array([None, *old[1:]])), "field 'action' is missing at row 0"),
    "null inside": (column(DATA, "action", lambda old: pa.array([[None] * 7, *old[1:]])), "is not finite at row 0"),
    "dates": (
        column(DATA, "timestamp", lambda old: pa.array([int(1e9 * t) for t in old], pa.timestamp("ns"))),
        "timestamp",
    ),
    "column twice": (rows(twice), "column 'action' is there twice"),
    "order": (rows(shuffled), "in the order of frame_index"),
    "task unknown": (column(DATA, "task_index", lambda old: pa.array([10**12] * len(old))), "[1000000000000] means"),
    "task negative": (column(DATA, "task_index", lambda old: pa.array([-1] * len(old))), "[-1] means"),
    "no word": (sentence("👍🏽"), "episode 0: instruction: must hold at least one word"),
    "empty": (sentence(""), "episode 0: instruction: must hold at least one word"),
    "50,000 words": (sentence("word " * 50_000), "episode 0: instruction: at most 1024 characters"),
    "steers a terminal": (sentence("lift \x1b[31m the\x07 bowl"), ""),
    "right to left": (sentence("lift \u202ethe\u202c bowl"), ""),
    "negative count": (inform(total_episodes=-1), "total_episodes is -1"),
    "negative rows": (inform(total_frames=-1), "total_frames is -1"),
    "epoch": (column(DATA, "timestamp", lambda old: pa.array([1.7e9 + t for t in old], pa.float64())), ""),
    "backwards": (column(DATA, "timestamp", lambda old: pa.array([-t for t in old])), "rows must be"),
    "fps zero": (inform(fps=0), "fps must be above 0"),
    "fps text": (inform(fps="20"), "meta/info.json: fps"),
    "fps list": (inform(fps=[20]), "meta/info.json: fps"),
    "count text": (inform(total_episodes="3"), "meta/info.json: total_episodes"),
    "features list": (inform(features=[]), "meta/info.json: features"),
    "features text": (inform(features="x"), "meta/info.json: features"),
    "image of 10^9": (inform(features={"observation.images.image": {"dtype": "image", "shape": [10**9] * 3}}), "shape"),
    "absolute path": (inform(data_path="/etc/{chunk_index:03d}"), "data_path"),
    "attribute": (inform(data_path="{chunk_index.foo}"), "data_path"),
    "item": (inform(data_path="{chunk_index[0]}"), "data_path"),
    "wide field": (inform(data_path="{chunk_index:999999999d}"), "data_path"),
    "long pattern": (inform(data_path="x" * 5000), "data_path"),
    "length null": (column(EPISODES, "length", lambda old: pa.array([None, *old[1:]])), "episode 0"),
    "length text": (column(EPISODES, "length", lambda old: pa.array(list(map(str, old)))), "episode 0"),
    "length 10^12": (column(EPISODES, "length", lambda old: pa.array([10**12, *old[1:]])), "1000000000000"),
    "index null": (column(EPISODES, "episode_index", lambda old: pa.array([None, *old[1:]])), "episode_index"),
    "chunk null": (column(EPISODES, "data/chunk_index", lambda old: pa.array([None, *old[1:]])), "data/chunk_index"),
    "no episode": (
        lambda f: pq.write_table(pq.read_table(f / EPISODES).slice(0, 0), f / EPISODES),
        "the tables have no episode",
    ),
    "next version": (inform(codebase_version="v3.1"), "LeRobotDataset v3.1"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_neighbour_runs_or_is_refused_in_one_line(name, original, tmp_path, capfd):
    change, words = CASES[name]
    folder = tmp_path / "data"
    shutil.copytree(original, folder)
    change(folder)
    size = json.loads((original / INFO).read_text())["features"]["observation.images.image"]["shape"][0]
    run = ["train-policy", "preset=tiny", f"data=[{folder}]", f"model.image_size={size}", f"run_dir={tmp_path / 'run'}"]
    code = main(run)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("worldrl: ")]
    assert (code, len(said)) == ((USER_ERROR, 1) if words else (OK, 0))
    if words:
        assert words in said[0]
        assert str(folder) in said[0]
