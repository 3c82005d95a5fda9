"""A crash-safe writer of LeRobotDataset v3.0: one episode is one durable unit.

``add_episode`` writes and renames the data file, then appends its line to the journal: a kill loses at most the episode
in flight. ``finalize`` derives what lerobot reads, on ``close`` and whenever the folder is re-opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import Fit
from worldrl.core.instructions import check_text, instruction_words
from worldrl.core.storage.atomic import disk_errors
from worldrl.core.types import Episode
from worldrl.data.lerobot.durable import PARTIAL_SUFFIX, append_durably, write_durably, writer_lock
from worldrl.data.lerobot.format import (
    INFO_PATH,
    JOURNAL_PATH,
    LOCK_PATH,
    DatasetHeader,
    EpisodeRecord,
    check_episode,
    data_path,
    data_schema,
)
from worldrl.data.lerobot.journal import REPAIR, Journal, read_journal, seal
from worldrl.data.lerobot.metadata import write_metadata
from worldrl.data.lerobot.rows import episode_columns, episode_stats, episode_table, new_record, table_bytes

LEAST_FILE, LEAST_SHARE = 5_000, 0.02
"""Of an episode's file without images (bytes), and of an image's bytes after compression, at the least."""


class LeRobotWriter:
    """Writes episodes into a new folder, or appends to one with the same header.

    ``fps`` must equal ``embodiment.control_hz``, because every control step is a frame, else SettingError.
    ArtefactError where the folder holds something else, another header or a damaged journal, or another writer is at
    work.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        fps: float,
        cameras: Sequence[str] = ("scene",),
        image_size: tuple[int, int],
        embodiment: AnyEmbodiment,
        suite: str = "",
        fit: Fit = Fit.refuse,
    ) -> None:
        self.folder = Path(folder)
        size = (image_size[0], image_size[1])
        header = DatasetHeader(_whole_fps(fps, embodiment), tuple(cameras), size, embodiment, suite, fit)
        self._resources = ExitStack()
        with disk_errors(self.folder, needed=0, error=ArtefactError):
            _refuse_external_folder(self.folder)
            self._resources.enter_context(writer_lock(self.folder / LOCK_PATH, str(self.folder)))
        try:
            with disk_errors(self.folder, needed=0, error=ArtefactError):
                journal = open_journal(self.folder, header)
        except BaseException:
            self._resources.close()
            raise
        self.header = journal.header
        self._records = list(journal.records)
        self._task_index = {record.instruction: record.task_index for record in journal.records}
        self._schema = data_schema(header)
        self._closed = False

    @property
    def records(self) -> tuple[EpisodeRecord, ...]:
        """The episodes on disk so far."""
        return tuple(self._records)

    def __len__(self) -> int:
        """Return how many episodes are on disk."""
        return len(self._records)

    def add_episode(self, episode: Episode) -> int:
        """Write one episode, with a JSON-ready ``meta``, and return its index; it then survives a crash.

        ArtefactError, with nothing written, for an episode that breaks its contract or has no text that an encoder
        reads, from a closed writer, or where the disk refuses.
        """
        if self._closed:
            raise ArtefactError(f"{self.folder}: this writer is closed; open a new LeRobotWriter to append")
        where = f"{self.folder}: episode {len(self)}"
        _check_texts(episode, where)
        check_episode(episode, self.header, where)
        task_index = self._task_index.get(episode.instruction, len(self._task_index))
        last = self._records[-1] if self._records else None
        record = new_record(episode, last, task_index, where)
        columns = episode_columns(episode, record, self.header)
        content = table_bytes(episode_table(episode, columns, self._schema))
        stats = episode_stats(episode, columns)
        record = replace(record, sha256=hashlib.sha256(content).hexdigest(), stats=stats)
        with disk_errors(self.folder, needed=len(content), error=ArtefactError):
            write_durably(self.folder / data_path(record.index), content)
            self._list(record)
        return record.index

    def finalize(self) -> None:
        """Derive lerobot's files from the journal, so that lerobot sees every episode written so far."""
        with disk_errors(self.folder, needed=0, error=ArtefactError):
            write_metadata(self.folder, self.header, self._records)

    def close(self) -> None:
        """Finalise and let go of the folder; a second call does nothing."""
        if not self._closed:
            self._closed = True
            with self._resources:
                self.finalize()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, also after an error: the episodes on disk are whole."""
        self.close()

    def _list(self, record: EpisodeRecord) -> None:
        append_durably(self.folder / JOURNAL_PATH, seal(record.to_json()))
        self._records.append(record)
        self._task_index[record.instruction] = record.task_index


def least_bytes(episodes: int, frames: int, cameras: int, image_size: int) -> int:
    """Bytes that so many episodes of so many frames take at least, however much their images can be compressed."""
    return episodes * (LEAST_FILE + int(LEAST_SHARE * frames * cameras * 3 * image_size**2))


def finalize_dataset(folder: Path | str) -> None:
    """Bring lerobot's files up to date after a writer was killed; ArtefactError as :class:`LeRobotWriter`."""
    header = read_journal(Path(folder)).header
    LeRobotWriter(
        folder,
        fps=header.fps,
        cameras=header.cameras,
        image_size=header.image_size,
        embodiment=header.embodiment,
        suite=header.suite,
        fit=header.fit,
    ).close()


def open_journal(folder: Path, header: DatasetHeader) -> Journal:
    """Create or read the journal and clear away what a killed writer left; ArtefactError for another header."""
    path = folder / JOURNAL_PATH
    if not path.exists():
        write_durably(path, seal(header.to_json()))
    journal = read_journal(folder)
    if journal.header.fit is Fit.refuse:
        header = replace(header, fit=Fit.refuse)  # a folder from before fits were stated stays one
    for name, value in header.to_json().items():
        found = journal.header.to_json().get(name)
        if found != value:
            raise ArtefactError(f"{folder}: {name} is {found}, this writer has {value}; write into another folder")
    _clear_leftovers(folder, journal)
    if path.stat().st_size > journal.size:
        write_durably(path, path.read_bytes()[: journal.size])
    write_metadata(folder, journal.header, journal.records)
    return journal


def _clear_leftovers(folder: Path, journal: Journal) -> None:
    """Remove the episode that was in flight; refuse when more than one whole file is unlisted."""
    listed = {folder / data_path(record.index) for record in journal.records}
    extra = sorted(set(folder.glob("data/chunk-*/file-*.parquet")) - listed)
    if len(extra) > 1 or journal.promised > len(listed):
        raise ArtefactError(
            f"{folder / JOURNAL_PATH}: lists {len(listed)} episodes, but {INFO_PATH} promises {journal.promised} and "
            f"{len(extra)} data files are not listed; the journal was cut: restore it from a copy, or {REPAIR}"
        )
    for path in [*extra, *folder.glob(f"data/chunk-*/*{PARTIAL_SUFFIX}"), *folder.glob(f"meta/**/*{PARTIAL_SUFFIX}")]:
        path.unlink()


def _whole_fps(fps: float, embodiment: AnyEmbodiment) -> int:
    if fps != round(fps) or fps <= 0:
        raise SettingError(f"fps must be a positive whole number (lerobot stores it so), got {fps}")
    if fps != embodiment.control_hz:
        raise SettingError(f"fps is {fps}, the embodiment's control_hz {embodiment.control_hz}; every step is a frame")
    return round(fps)


def _check_texts(episode: Episode, where: str) -> None:
    check_text("task", episode.task, where, ArtefactError)
    instruction = check_text("instruction", episode.instruction, where, ArtefactError)
    try:
        instruction_words(instruction)
    except SettingError as reason:
        raise ArtefactError(f"{where}: {reason}") from reason


def _refuse_external_folder(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / JOURNAL_PATH).exists():
        leftovers = {folder / "meta", folder / "data"}
        if set(folder.iterdir()) <= leftovers and not (folder / INFO_PATH).exists():
            return  # a writer died before it wrote the header
        raise ArtefactError(f"{folder}: not empty and not a dataset of worldrl; give a new folder")
