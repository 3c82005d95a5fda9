"""A LeRobotDataset v3.0 folder that others made: what its metadata says, checked before anything is decoded.

Layout, as lerobot writes it::

    meta/info.json                          version, fps, features (dtype, shape, names), path patterns
    meta/tasks.parquet                      instruction by task_index
    meta/episodes/chunk-*/file-*.parquet    one row per episode: length, tasks, which files hold it, and from when on
    data/chunk-*/file-*.parquet             many episodes each, one row per frame; images as PNG, or
    videos/KEY/chunk-*/file-*.mp4           many episodes each

A row holds an observation and the action that belongs to it; nothing has a checksum. What the numbers mean is not in the
folder either: ``meaning.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.lerobot.external.files import WHOLE, file_of, read_columns, require_file
from worldrl.data.lerobot.external.info import Feature, read_info
from worldrl.data.lerobot.external.selection import Selection, read_selection
from worldrl.data.lerobot.external.table import (
    EPISODE_FILES,
    TableRow,
    read_sentences,
    read_table,
    require_counts,
    require_frames,
    whole,
)
from worldrl.data.lerobot.format import INFO_PATH, JOURNAL_PATH, LEROBOT_VERSION, TASKS_PATH

__all__ = [
    "WHOLE",
    "Clip",
    "ExternalEpisode",
    "ExternalFolder",
    "Feature",
    "is_external",
    "read_columns",
    "read_folder",
]

MAX_TIME_S = 1e9


@dataclass(frozen=True)
class Clip:
    """Where an episode lies in a video file."""

    file: Path  # the video
    start_s: float  # time of the episode's first frame in it (s)
    end_s: float  # time at which the episode ends in it (s)


@dataclass(frozen=True)
class ExternalEpisode:
    """One row of the episode table."""

    index: int  # its number
    rows: int  # how many frames it has
    first_row: int  # how many rows come before it in the dataset
    sentence: str  # what the robot is to do
    file: Path  # the data file
    clips: Mapping[str, Clip]  # by camera feature, of the cameras that are videos


@dataclass(frozen=True)
class ExternalFolder:
    """What the metadata says."""

    path: Path  # the folder
    fps: float  # frames per second, as `info.json` states them
    robot_type: str  # likewise; empty where it says none
    data_path: str  # pattern of the data files
    video_path: str  # pattern of the video files; empty where it says none
    features: Mapping[str, Feature]  # by name
    sentences: Mapping[int, str]  # by `task_index`
    selection: Selection  # which episodes are kept
    table: Mapping[int, TableRow]  # every row of the episode table, by number
    promised: int  # how many episodes `info.json` counts
    episodes: tuple[ExternalEpisode, ...]  # those that are kept, in order
    # Films, by camera, and data files that were verified since the folder was opened.
    verified: set[tuple[str, Path]] = field(default_factory=set, compare=False, repr=False)

    @property
    def info(self) -> Path:
        """The file that most messages are about."""
        return self.path / INFO_PATH

    @cached_property
    def identity(self) -> str:
        """A digest of the metadata and of the sizes of all files that are read; their bytes are not read for it."""
        digest = hashlib.sha256()
        for file in [self.info, self.path / TASKS_PATH, *sorted(self.path.glob(EPISODE_FILES))]:
            digest.update(file.read_bytes())
        for file in self.files:
            digest.update(f"{file.relative_to(self.path).as_posix()} {file.stat().st_size}\n".encode())
        return digest.hexdigest()

    @property
    def files(self) -> list[Path]:
        """Every data and video file that is read, each once."""
        clips = (clip.file for episode in self.episodes for clip in episode.clips.values())
        return list(dict.fromkeys([*(episode.file for episode in self.episodes), *clips]))

    @cached_property
    def kept(self) -> Mapping[Path, list[ExternalEpisode]]:
        """The episodes that are kept, by data file."""
        found: dict[Path, list[ExternalEpisode]] = {}
        for episode in self.episodes:
            found.setdefault(episode.file, []).append(episode)
        return found

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Numbers of the episodes that are kept."""
        return frozenset(episode.index for episode in self.episodes)

    @cached_property
    def places(self) -> Mapping[int, Path | None]:
        """The data file of every episode of the table; None where the table is wrong about it."""
        files: dict[tuple[int, int], Path] = {}
        for row in self.table.values():
            if not row.fault and row.data not in files:
                files[row.data] = self.data_file(row.data)
        return {index: None if row.fault else files[row.data] for index, row in self.table.items()}

    def data_file(self, numbers: tuple[int, int]) -> Path:
        """Return the data file of a chunk's and a file's number."""
        return file_of(self.path, f"{self.info}: field 'data_path'", self.data_path, numbers)


def is_external(folder: Path) -> bool:
    """Whether this is a LeRobotDataset of the version read here, not worldrl's; ArtefactError if damaged."""
    path = folder / INFO_PATH
    if (folder / JOURNAL_PATH).exists() or not path.exists():
        return False
    require_file(folder, path)
    info = read_json(path, error=ArtefactError)
    return info.get("codebase_version") == LEROBOT_VERSION and "worldrl" not in info


def read_folder(path: Path) -> ExternalFolder:
    """Read the metadata of a folder for which :func:`is_external` holds.

    ArtefactError for a field that is missing or contradicts another; SettingError for an impossible ``worldrl.json``.
    """
    info = read_info(path)
    features = info.typed_features(path / INFO_PATH)
    sentences = read_sentences(path)
    selection = read_selection(path, sentences.values())
    table = read_table(path, sentences)
    if not table:
        raise ArtefactError(f"{path / EPISODE_FILES}: the tables have no episode; {WHOLE}")
    require_counts(path, info, table, selection)
    rows = [row for row in table.values() if selection.keeps(row.index, row.sentences)]
    selection.refuse({row.index: row.fault for row in rows if row.fault}, [row.index for row in rows])
    require_frames(path, info, table, selection)
    if not rows:
        raise SettingError(f"{selection.file}: tasks and leave_out keep none of the {len(table)} episodes in {path}")
    folder = ExternalFolder(
        path=path,
        fps=info.fps,
        robot_type=info.robot_type or "",
        data_path=info.data_path,
        video_path=info.video_path or "",
        features=features,
        sentences=sentences,
        selection=selection,
        table=table,
        promised=info.total_episodes or 0,
        episodes=(),
    )
    return replace(folder, episodes=tuple(_episodes(folder, rows)))


def _episodes(folder: ExternalFolder, rows: Iterable[TableRow]) -> list[ExternalEpisode]:
    made: list[ExternalEpisode] = []
    for row in rows:
        first_row = made[-1].first_row + made[-1].rows if made else 0
        file = folder.places[row.index]
        if file is not None:
            made.append(ExternalEpisode(row.index, row.rows, first_row, row.sentences[0], file, {}))
    return made


def with_films(folder: ExternalFolder, cameras: Iterable[str]) -> ExternalFolder:
    """Look up the films of the cameras that are read; ArtefactError where a kept episode has none."""
    names = [name for name in cameras if folder.features[name].dtype == "video"]
    faults: dict[int, str] = {}
    found: list[ExternalEpisode] = []
    seen: set[Path] = set()
    for episode in folder.episodes:
        try:
            clips = {name: clip_of(folder, episode.index, name) for name in names}
            for clip in clips.values():
                if clip.file not in seen:
                    require_file(folder.path, clip.file)
                    seen.add(clip.file)
            found.append(replace(episode, clips=clips))
        except ArtefactError as reason:
            faults[episode.index] = str(reason)
    folder.selection.refuse(faults, folder.numbers)
    return replace(folder, episodes=tuple(found))


def clip_of(folder: ExternalFolder, index: int, name: str) -> Clip:
    """Return an episode's part of a camera's film; ArtefactError for other than numbers and times."""
    films, prefix = folder.table[index].films, f"videos/{name}/"
    where = f"{folder.path / 'meta/episodes'}: episode {index}, field '{prefix}"
    numbers: list[int] = []
    for part in ("chunk_index", "file_index"):
        given = films.get(prefix + part)
        number = whole(given)
        if number is None:
            raise ArtefactError(f"{where}{part}' must be a whole number, got {given!r}; {WHOLE}")
        numbers.append(number)
    start, end = (_seconds(films.get(prefix + part), f"{where}{part}'") for part in ("from_timestamp", "to_timestamp"))
    return Clip(
        file_of(folder.path, f"{folder.info}: field 'video_path'", folder.video_path, numbers, name), start, end
    )


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < MAX_TIME_S:
        raise ArtefactError(f"{where} must be seconds, got {value!r}; {WHOLE}")
    return float(value)
