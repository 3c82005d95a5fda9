"""The files that lerobot reads beside the data, derived from the journal; ``info.json`` is written last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from worldrl.data.lerobot.durable import write_durably
from worldrl.data.lerobot.format import (
    DATA_PATTERN,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    HEADER_COPY,
    INFO_PATH,
    LEROBOT_VERSION,
    ROBOT_TYPE,
    STATS_PATH,
    TASKS_PATH,
    DatasetHeader,
    EpisodeRecord,
    feature_table,
)
from worldrl.data.lerobot.stats import merge_stats


def write_metadata(folder: Path, header: DatasetHeader, records: Sequence[EpisodeRecord]) -> None:
    """Derive ``meta/`` from the journal, replacing outdated files atomically; OSError where it cannot be written."""
    for path, content in derived_files(header, records).items():
        if not is_current(folder / path, content):
            encoded = _parquet_bytes(content) if isinstance(content, pa.Table) else _json_bytes(content)
            write_durably(folder / path, encoded)


def derived_files(header: DatasetHeader, records: Sequence[EpisodeRecord]) -> dict[Path, pa.Table | dict[str, Any]]:
    """Return what each derived file should hold, in the order of writing."""
    files: dict[Path, pa.Table | dict[str, Any]] = {TASKS_PATH: tasks_table(records)}
    files[STATS_PATH] = merge_stats([record.stats for record in records])
    if records:
        files[EPISODES_PATH] = episodes_table(records)
    files[INFO_PATH] = info(header, records)
    return files


def is_current(path: Path, expected: pa.Table | dict[str, Any]) -> bool:
    """Whether a derived file holds what it should; False when it is missing or damaged."""
    try:
        if isinstance(expected, pa.Table):
            return pq.read_table(path, page_checksum_verification=True).equals(expected)
        return json.loads(path.read_text(encoding="utf-8")) in (expected, _without_copy(expected))
    except (OSError, ValueError, pa.ArrowException):
        return False


def _without_copy(content: dict[str, Any]) -> dict[str, Any]:
    """``info.json`` as older versions wrote it; other files are as they are."""
    if "action" not in content.get("features", {}):
        return content
    features = {name: {**entry} for name, entry in content["features"].items()}
    features["action"].pop(HEADER_COPY, None)
    return {**content, "features": features}


def instructions(records: Sequence[EpisodeRecord]) -> list[str]:
    """Return the instructions in the order of their ``task_index``."""
    return [text for _, text in sorted({record.task_index: record.instruction for record in records}.items())]


def info(header: DatasetHeader, records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return ``info.json``; the key ``worldrl`` and its copy are ours, lerobot ignores them."""
    features, ours = feature_table(header), header.to_json()
    features["action"] |= {HEADER_COPY: ours}
    return {
        "codebase_version": LEROBOT_VERSION,
        "robot_type": ROBOT_TYPE,
        "total_episodes": len(records),
        "total_frames": sum(record.rows for record in records),
        "total_tasks": len(instructions(records)),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": header.fps,
        "splits": {"train": f"0:{len(records)}"},
        "data_path": DATA_PATTERN,
        "video_path": None,
        "features": features,
        "worldrl": ours,
    }


def tasks_table(records: Sequence[EpisodeRecord]) -> pa.Table:
    """Return ``tasks.parquet``: a pandas frame whose index is the instruction (lerobot reads it with pandas)."""
    texts = instructions(records)
    table = pa.table({"task_index": pa.array(range(len(texts)), pa.int64()), "task": pa.array(texts, pa.string())})
    index = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [{**column, "metadata": None}, index],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()})


def episodes_table(records: Sequence[EpisodeRecord]) -> pa.Table:
    """Return the episode table: lerobot's columns, ours under ``worldrl/``, statistics under ``stats/``."""
    rows = [_episode_row(record) for record in records]
    # With types it need not infer, for which pyarrow looks for dateutil anew in each column: a third of the time.
    types = [(name, arrow_type([row[name] for row in rows])) for name in (rows[0] if rows else ())]
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def arrow_type(values: Sequence[Any]) -> pa.DataType:
    """The type that pyarrow infers for a column of numbers, texts and nested lists of them."""
    kinds = {type(value) for value in values}
    if kinds == {list}:
        return pa.list_(arrow_type([part for value in values for part in value]))
    known = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
    return known.get(kinds.pop(), pa.float64()) if len(kinds) == 1 else pa.float64()


def _episode_row(record: EpisodeRecord) -> dict[str, Any]:
    chunk, file = divmod(record.index, FILES_PER_CHUNK)
    row: dict[str, Any] = {
        "episode_index": record.index,
        "tasks": [record.instruction],
        "length": record.rows,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": record.first_row,
        "dataset_to_index": record.first_row + record.rows,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }
    for name in ("task", "terminated", "truncated", "success", "sha256", "content"):
        row[f"worldrl/{name}"] = getattr(record, name)
    row["worldrl/meta"] = json.dumps(dict(record.meta), ensure_ascii=False)
    stats = record.stats.items()
    return row | {f"stats/{column}/{name}": value for column, parts in stats for name, value in parts.items()}


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
