"""Reading one episode back, exactly as it was written; a data file's SHA-256 is verified before it is decoded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import (
    IMAGE_PREFIX,
    DatasetHeader,
    EpisodeRecord,
    check_episode,
    data_path,
    data_schema,
)
from worldrl.data.lerobot.journal import REPAIR


def read_episode(folder: Path, header: DatasetHeader, record: EpisodeRecord) -> Episode:
    """Read one episode, bit for bit; ArtefactError where its file is missing, damaged, or contradicts the journal."""
    path = folder / data_path(record.index)
    table = _verified_table(path, record, data_schema(header))
    columns = {name: _numpy(table.column(name)) for name in table.schema.names if not name.startswith(IMAGE_PREFIX)}
    _check_numbers(path, columns, record, header.fps)
    episode = Episode(
        frames=_frames(table, header, path),
        state=columns["observation.state"],
        command=columns["observation.command"],
        action=columns["action"][:-1],
        reward=columns["next.reward"][:-1],
        contact=columns["contact"],
        terminated=record.terminated,
        truncated=record.truncated,
        instruction=record.instruction,
        task=record.task,
        cameras=header.cameras,
        meta=dict(record.meta),
        actions=header.embodiment.actions,
    )
    check_episode(episode, header, str(path))
    return episode


def read_verified_bytes(path: Path, record: EpisodeRecord) -> bytes:
    """Return a data file's bytes; ArtefactError where it is missing, or not the one that was written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ArtefactError(f"{path}: missing, though the journal lists episode {record.index}; {REPAIR}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != record.sha256:
        raise ArtefactError(
            f"{path}: damaged: SHA-256 {found[:12]}…, the journal says {record.sha256[:12]}… "
            f"({len(content)} bytes on disk); restore it from a copy, or {REPAIR}"
        )
    return content


def _verified_table(path: Path, record: EpisodeRecord, schema: pa.Schema) -> pa.Table:
    content = read_verified_bytes(path, record)
    try:
        table = pq.read_table(pa.BufferReader(content), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ArtefactError(f"{path}: not readable as Parquet ({error}); {REPAIR}") from error
    if table.schema.remove_metadata() != schema.remove_metadata() or table.num_rows != record.rows:
        raise ArtefactError(
            f"{path}: {table.num_rows} rows of {table.schema.names}, expected {record.rows} of {schema.names}; {REPAIR}"
        )
    return table


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a writable numpy array ``[rows]`` or ``[rows, size]`` of a column."""
    array = column.combine_chunks()
    if not pa.types.is_fixed_size_list(array.type):
        return array.to_numpy(zero_copy_only=False).copy()
    return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), array.type.list_size).copy()


def _check_numbers(path: Path, columns: dict[str, NDArray[Any]], record: EpisodeRecord, fps: int) -> None:
    """Compare the standard columns with what the journal implies."""
    frame_index = np.arange(record.rows)
    expected = {
        "frame_index": frame_index,
        "index": record.first_row + frame_index,
        "episode_index": np.full(record.rows, record.index),
        "task_index": np.full(record.rows, record.task_index),
        "is_last": frame_index == record.length,
        "timestamp": (frame_index / fps).astype(np.float32),
    }
    for name, values in expected.items():
        if not np.array_equal(columns[name], values):
            row = int(np.argmax(columns[name] != values))
            rule = f"at {fps} frames per second" if name == "timestamp" else "by the journal"
            raise ArtefactError(f"{path}: {name} is {columns[name][row]} at row {row}, {values[row]} {rule}; {REPAIR}")


def _frames(table: pa.Table, header: DatasetHeader, path: Path) -> NDArray[np.uint8]:
    frames = np.empty((table.num_rows, len(header.cameras), *header.image_size, 3), dtype=np.uint8)
    for view, camera in enumerate(header.cameras):
        column = table.column(IMAGE_PREFIX + camera).combine_chunks().field("bytes").to_pylist()
        for row, png in enumerate(column):
            _decode_into(png, frames[row, view], f"{path}: {camera} frame {row}")
    return frames


def _decode_into(png: bytes | None, out: NDArray[np.uint8], where: str) -> None:
    frame = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR) if png else None
    if frame is None or frame.shape != out.shape:
        shape = None if frame is None else frame.shape
        raise ArtefactError(f"{where}: decodes to {shape}, expected {out.shape}; {REPAIR}")
    cv2.cvtColor(frame, cv2.COLOR_BGR2RGB, dst=out)
