"""One episode as rows of a data file: encoding, columns, statistics and its journal record."""

from __future__ import annotations

import json
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import IMAGE_PREFIX, DatasetHeader, EpisodeRecord, episode_digest
from worldrl.data.lerobot.stats import column_stats, image_stats

# On rendered frames of the embedded suite, run-length matching gives files as small as level 6 in 60 % of its time:
# 1.2 kB in 0.08 ms at 64 px, 8 kB in 1.0 ms at 256 px; Huffman only takes two to four times the space.
PNG_PARAMETERS = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]


def encode_png(frame: NDArray[np.uint8]) -> bytes:
    """Encode one RGB frame ``[Y, X, 3]`` without loss."""
    ok, png = cv2.imencode(".png", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), PNG_PARAMETERS)
    if not ok:
        raise ArtefactError(f"OpenCV could not encode a frame of shape {frame.shape} as PNG")
    return png.tobytes()


def episode_columns(episode: Episode, record: EpisodeRecord, header: DatasetHeader) -> dict[str, NDArray[Any]]:
    """Lay an episode out as ``T + 1`` rows ``[T+1]`` or ``[T+1, size]`` by column name, images left out."""
    frame_index = np.arange(record.rows)
    reward = np.append(episode.reward, np.float32(0))
    return {
        "observation.state": episode.state,
        "observation.command": episode.command,
        "action": np.concatenate([episode.action, header.embodiment.actions.hold(episode.command[-1])[None]]),
        "contact": episode.contact,
        "next.reward": reward,
        "next.success": reward > 0,
        "is_last": frame_index == record.length,
        "timestamp": (frame_index / header.fps).astype(np.float32),
        "frame_index": frame_index,
        "episode_index": np.full(record.rows, record.index),
        "index": record.first_row + frame_index,
        "task_index": np.full(record.rows, record.task_index),
    }


def episode_table(episode: Episode, columns: dict[str, NDArray[Any]], schema: pa.Schema) -> pa.Table:
    """Return the Arrow table of one data file."""
    arrays: dict[str, pa.Array] = {}
    for view, camera in enumerate(episode.cameras):
        images = [{"bytes": encode_png(frame), "path": None} for frame in episode.frames[:, view]]
        arrays[IMAGE_PREFIX + camera] = pa.array(images, schema.field(IMAGE_PREFIX + camera).type)
    for name, values in columns.items():
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        arrays[name] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def episode_stats(episode: Episode, columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Describe every column; the last row's hold action and reward are no data and are left out."""
    stats = {IMAGE_PREFIX + name: image_stats(episode.frames[:, v]) for v, name in enumerate(episode.cameras)}
    for name, values in columns.items():
        real = values[:-1] if name == "action" or name.startswith("next.") else values
        stats[name] = column_stats(real.reshape(len(real), -1))
    return stats


def table_bytes(table: pa.Table) -> bytes:
    """Return a data file's bytes: images as they are (PNG is compressed already), the rest with snappy."""
    plain = [name for name in table.schema.names if not name.startswith(IMAGE_PREFIX)]
    images = [f"{name}.{part}" for name in table.schema.names if name not in plain for part in ("bytes", "path")]
    compression = {**dict.fromkeys(plain, "snappy"), **dict.fromkeys(images, "none")}
    # Statistics let readers skip files by episode_index; of PNG bytes they would only swell the footer.
    options: dict[str, Any] = {"compression": compression, "write_statistics": plain, "write_page_checksum": True}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_dictionary=False, **options)
    return sink.getvalue().to_pybytes()


def new_record(episode: Episode, last: EpisodeRecord | None, task_index: int, where: str) -> EpisodeRecord:
    """Describe an episode after ``last``, without hash and statistics; ArtefactError where ``meta`` is no JSON."""
    return EpisodeRecord(
        index=last.index + 1 if last else 0,
        length=len(episode),
        first_row=last.first_row + last.rows if last else 0,
        task=episode.task,
        instruction=episode.instruction,
        task_index=task_index,
        terminated=bool(episode.terminated),
        truncated=bool(episode.truncated),
        success=episode.success,
        meta=_json_meta(episode, where),
        sha256="",
        content=episode_digest(episode),
    )


def _json_meta(episode: Episode, where: str) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(episode.meta), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArtefactError(f"{where}: meta is not JSON-ready ({error}); use plain numbers, text and lists") from error
