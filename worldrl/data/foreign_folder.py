"""A LeRobotDataset v3.0 folder that others made: what its metadata says, checked before anything is decoded.

Layout, as lerobot writes it::

    meta/info.json                          version, fps, features (dtype, shape, names), path patterns
    meta/tasks.parquet                      sentence by task_index
    meta/episodes/chunk-*/file-*.parquet    one row per episode: length, tasks, which files hold it, and from when on
    data/chunk-*/file-*.parquet             many episodes each, one row per frame; pictures as PNG, or
    videos/KEY/chunk-*/file-*.mp4           many episodes each

A row holds an observation and the action that belongs to it; nothing has a checksum. What the numbers mean is not in the
folder either: ``foreign_meaning.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from worldrl.core.errors import ArtefactError
from worldrl.core.jsonfile import read_json
from worldrl.data.lerobot_format import INFO_PATH, JOURNAL_PATH, LEROBOT_VERSION, TASKS_PATH

EPISODE_FILES = "meta/episodes/chunk-*/file-*.parquet"
PICTURES = ("image", "video")
"""Dtypes of features that are pictures."""
SPAN = ("from_timestamp", "to_timestamp")
WHOLE = "download the whole dataset again: hf download USER/DATASET --repo-type dataset --local-dir FOLDER"


@dataclass(frozen=True)
class Feature:
    """One feature of ``info.json``.

    Attributes:
        name: its key.
        dtype: as written there: ``float32``, ``image``, ``video``, ...
        shape: of one row.
        labels: names of its numbers, where it has as many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    labels: tuple[str, ...]

    @property
    def is_picture(self) -> bool:
        """Whether it is a camera."""
        return self.dtype in PICTURES

    @property
    def image_size(self) -> tuple[int, int]:
        """Rows and columns of a camera; both orders are in use: ``[Y, X, 3]`` and ``[3, Y, X]``."""
        rows, columns = self.shape[1:] if self.shape[0] == 3 and self.shape[-1] != 3 else self.shape[:2]
        return rows, columns


@dataclass(frozen=True)
class Clip:
    """Where an episode lies in a video file.

    Attributes:
        file: the video.
        start_s: time of the episode's first frame in it (s).
        end_s: time at which the episode ends in it (s).
    """

    file: Path
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ForeignEpisode:
    """One row of the episode table.

    Attributes:
        index: its number.
        rows: how many frames it has.
        first_row: how many rows come before it in the dataset.
        sentence: what the robot was told.
        file: the data file.
        clips: by camera feature, of the cameras that are videos.
    """

    index: int
    rows: int
    first_row: int
    sentence: str
    file: Path
    clips: Mapping[str, Clip]


@dataclass(frozen=True)
class ForeignFolder:
    """What the metadata says.

    Attributes:
        path: the folder.
        fps: frames per second, as ``info.json`` states them.
        robot_type: likewise; empty where it says none.
        features: by name.
        sentences: by ``task_index``.
        episodes: in order.
        verified: films, by camera, and data files that were verified since the folder was opened.
    """

    path: Path
    fps: float
    robot_type: str
    features: Mapping[str, Feature]
    sentences: Mapping[int, str]
    episodes: tuple[ForeignEpisode, ...]
    verified: set[tuple[str, Path]] = field(default_factory=set, compare=False, repr=False)

    @property
    def info(self) -> Path:
        """The file that most messages are about."""
        return self.path / INFO_PATH

    @cached_property
    def identity(self) -> str:
        """A digest of the metadata and of the sizes of all data files; their bytes are not read for it."""
        digest = hashlib.sha256()
        for file in [self.info, self.path / TASKS_PATH, *sorted(self.path.glob(EPISODE_FILES))]:
            digest.update(file.read_bytes())
        for file in self.files:
            digest.update(f"{file.relative_to(self.path).as_posix()} {file.stat().st_size}\n".encode())
        return digest.hexdigest()

    @property
    def files(self) -> list[Path]:
        """Every data and video file, each once."""
        clips = (clip.file for episode in self.episodes for clip in episode.clips.values())
        return list(dict.fromkeys([*(episode.file for episode in self.episodes), *clips]))


def is_foreign(folder: Path) -> bool:
    """Whether this is a LeRobotDataset of a version that is read here, and not one that worldrl wrote."""
    path = folder / INFO_PATH
    if (folder / JOURNAL_PATH).exists() or not path.is_file():
        return False
    info = read_json(path, error=ArtefactError)
    return info.get("codebase_version") == LEROBOT_VERSION and "worldrl" not in info


def read_folder(path: Path) -> ForeignFolder:
    """Read the metadata of a folder.

    Args:
        path: for which :func:`is_foreign` holds.

    Raises:
        ArtefactError: a file or field that is missing, or says something else than another one; the message names both.
    """
    info = read_json(path / INFO_PATH, error=ArtefactError)
    where = path / INFO_PATH
    features = {name: _feature(where, name, entry) for name, entry in dict(_field(info, "features", where)).items()}
    sentences = _sentences(path / TASKS_PATH)
    rows = _episode_rows(path, info, [name for name, feature in features.items() if feature.dtype == "video"])
    folder = ForeignFolder(
        path=path,
        fps=float(_field(info, "fps", where)),
        robot_type=str(info.get("robot_type") or ""),
        features=features,
        sentences=sentences,
        episodes=tuple(rows),
    )
    _require_whole(folder, info)
    return folder


def _field(entry: Mapping[str, Any], name: str, where: Path) -> Any:
    if entry.get(name) is None:
        raise ArtefactError(f"{where}: field {name!r} is missing; {WHOLE}")
    return entry[name]


def _feature(where: Path, name: str, entry: Mapping[str, Any]) -> Feature:
    try:
        shape = tuple(int(size) for size in entry["shape"])
        dtype, names = str(entry["dtype"]), entry.get("names")
    except (KeyError, TypeError, ValueError) as reason:
        raise ArtefactError(
            f"{where}: features.{name} must have dtype and shape, got {entry!r}; write it again"
        ) from reason
    labels = _labels(names)
    feature = Feature(name, dtype, shape, labels if shape == (len(labels),) else ())
    if feature.is_picture and (len(shape) != 3 or 3 not in (shape[0], shape[-1])):
        raise ArtefactError(f"{where}: features.{name} must be a colour image, its shape is {list(shape)}")
    return feature


def _labels(names: Any) -> tuple[str, ...]:
    """Names as a list, or as lerobot's older ``{"motors": [...]}``."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()), ())
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()


def read_columns(file: Path, columns: Sequence[str], **options: Any) -> pa.Table:
    """Read columns of a Parquet file.

    Args:
        file: which.
        columns: names.
        **options: of ``pyarrow.parquet.read_table``.

    Raises:
        ArtefactError: the file is missing or damaged, or lacks one of them.
    """
    try:
        there = pq.read_schema(file).names
        missing = [name for name in columns if name not in there]
        if missing:
            raise ArtefactError(f"{file}: column {missing[0]!r} is missing; it has {', '.join(there[:12])}")
        plain: dict[str, Any] = {"use_threads": False, "partitioning": None}  # a folder named x=1 is no column
        return pq.read_table(file, columns=list(columns), **plain, **options)
    except FileNotFoundError as reason:
        raise ArtefactError(f"{file}: missing; {WHOLE}") from reason
    except (OSError, pa.ArrowException) as reason:
        raise ArtefactError(f"{file}: not readable as Parquet ({reason}); {WHOLE}") from reason


def _sentences(file: Path) -> dict[int, str]:
    """Return sentences by ``task_index``; pandas has them as the frame's index, under one name or another."""
    try:
        texts = [name for name in pq.read_schema(file).names if name != "task_index"]
    except (OSError, pa.ArrowException) as reason:
        raise ArtefactError(f"{file}: missing or not readable ({reason}); {WHOLE}") from reason
    name = "task" if "task" in texts else next(iter(texts), "task")
    table = read_columns(file, ["task_index", name])
    return dict(zip(table["task_index"].to_pylist(), map(str, table[name].to_pylist()), strict=True))


def _episode_rows(path: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[ForeignEpisode]:
    """Read the episode table, all files of it."""
    files = sorted(path.glob(EPISODE_FILES))
    if not files:
        raise ArtefactError(f"{path / EPISODE_FILES}: no such file; {WHOLE}")
    names = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index"]
    names += [f"videos/{key}/{part}" for key in videos for part in ("chunk_index", "file_index", *SPAN)]
    rows = [row for file in files for row in read_columns(file, names).to_pylist()]
    rows.sort(key=lambda row: row["episode_index"])
    episodes: list[ForeignEpisode] = []
    for number, row in enumerate(rows):
        if row["episode_index"] != number:
            raise ArtefactError(f"{files[0].parent}: episode_index {number} is missing, or there twice; {WHOLE}")
        first_row = episodes[-1].first_row + episodes[-1].rows if episodes else 0
        episodes.append(_episode(path, info, row, videos, first_row))
    return episodes


def _episode(
    path: Path, info: Mapping[str, Any], row: Mapping[str, Any], videos: Sequence[str], first_row: int
) -> ForeignEpisode:
    number, told = int(row["episode_index"]), row["tasks"]
    told = [told] if isinstance(told, str) else list(told or ())
    if len(told) != 1:
        raise ArtefactError(
            f"{path / 'meta/episodes'}: episode {number}, field 'tasks' is {told}; one instruction is read"
        )
    if int(row["length"]) < 2:
        raise ArtefactError(
            f"{path / 'meta/episodes'}: episode {number} has {row['length']} rows; at least 2 are needed"
        )
    clips = {
        key: Clip(
            _file(path, info, "video_path", row, f"videos/{key}", key),
            *(float(row[f"videos/{key}/{part}"]) for part in SPAN),
        )
        for key in videos
    }
    file = _file(path, info, "data_path", row, "data", "")
    return ForeignEpisode(number, int(row["length"]), first_row, str(told[0]), file, clips)


def _file(path: Path, info: Mapping[str, Any], pattern: str, row: Mapping[str, Any], part: str, key: str) -> Path:
    """Return a file of an episode. Data and videos are numbered apart: one's number says nothing about the other's."""
    numbers = {"chunk_index": row[f"{part}/chunk_index"], "file_index": row[f"{part}/file_index"]}
    text = str(_field(info, pattern, path / INFO_PATH))
    try:
        return path / text.format(video_key=key, **numbers)
    except (KeyError, IndexError, ValueError) as reason:
        raise ArtefactError(
            f"{path / INFO_PATH}: field {pattern!r} is {text!r}, which is no pattern of v3.0"
        ) from reason


def _require_whole(folder: ForeignFolder, info: Mapping[str, Any]) -> None:
    """Compare counts, and look for every file."""
    counts = {"total_episodes": len(folder.episodes), "total_frames": sum(e.rows for e in folder.episodes)}
    for name, count in counts.items():
        if int(info.get(name, count)) != count:
            raise ArtefactError(f"{folder.info}: {name} is {info[name]}, the episode table has {count}; {WHOLE}")
    for episode in folder.episodes:
        if episode.sentence not in folder.sentences.values():
            raise ArtefactError(
                f"{folder.path / TASKS_PATH}: has no {episode.sentence!r}, which episode {episode.index} is about; {WHOLE}"
            )
    missing = [file for file in folder.files if not file.is_file()]
    if missing:
        raise ArtefactError(f"{missing[0]}: missing ({len(missing)} of {len(folder.files)} files are); {WHOLE}")
