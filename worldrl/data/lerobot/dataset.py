"""A recorded dataset as a sequence of episodes.

Opening reads the journal or the metadata only; episodes are decoded on demand, or all by :meth:`load`. Subsets and
concatenations share files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import Fit, ImageFit, fit_image, keeps_aspect
from worldrl.core.storage.capacity import is_large, mapped_array, require_memory
from worldrl.core.storage.jsonfile import difference
from worldrl.core.types import Episode
from worldrl.data.lerobot.check import Finding, check_dataset, repair_dataset
from worldrl.data.lerobot.format import INFO_PATH, JOURNAL_PATH, DatasetHeader, EpisodeRecord, check_episode
from worldrl.data.lerobot.journal import REPAIR, read_journal
from worldrl.data.lerobot.reader import read_episode
from worldrl.data.lerobot.rows import new_record

__all__ = ["EpisodeDataset", "Finding", "assumed", "check_dataset", "open_recorded", "repair_dataset"]


@dataclass(frozen=True)
class _Entry:
    """One episode of a dataset: its record, and what decodes it or has it decoded."""

    record: EpisodeRecord
    read: Callable[[], Episode]

    def loaded(self, place: NDArray[np.uint8] | None) -> _Entry:
        """Decode it once and for all; its images go to ``place``, if any."""
        episode = self.read()
        if place is not None:
            place[:] = episode.frames
            episode = replace(episode, frames=place)
        return _Entry(self.record, partial(_decoded, episode))


def _decoded(episode: Episode) -> Episode:
    return episode


def _fitted_episode(read: Callable[[], Episode], images: ImageFit) -> Episode:
    episode = read()
    frames = np.empty((*episode.frames.shape[:2], *images.size, 3), np.uint8)
    for place in np.ndindex(frames.shape[:2]):
        frames[place] = fit_image(episode.frames[place], images.size, images.fit)
    return replace(episode, frames=frames)


def _fitted_content(record: EpisodeRecord, images: ImageFit) -> str:
    return hashlib.blake2b(f"{record.content} {images}".encode(), digest_size=16).hexdigest()


class EpisodeDataset(Sequence[Episode]):
    """Episodes that share fps, cameras, image size and embodiment (``header``); messages name its ``source``."""

    def __init__(self, header: DatasetHeader, entries: Iterable[_Entry], source: str = "a dataset in memory") -> None:
        self.header, self.source = header, source
        self._entries = tuple(entries)

    @classmethod
    def open(cls, folder: Path | str, *, fps: float | None = None, images: ImageFit | None = None) -> Self:
        """Open a dataset on disk, also one whose writer is still at work; no episode is decoded yet.

        A folder of worldrl, or a LeRobotDataset v3.0 of others, whose ``worldrl.json`` says what cannot be recognised
        (:mod:`worldrl.data.lerobot.external.meaning`). ``fps`` refuses another rate; ``images`` brings images to a size
        while they are decoded. ArtefactError where it is missing, damaged, or of another version or rate; SettingError
        where the meaning of external numbers is unknown.
        """
        from worldrl.data.lerobot.external.folder import is_external

        folder = Path(folder)
        if images is not None and images.fit is Fit.refuse:
            images = None
        dataset = (
            cls._open_external(folder, images) if is_external(folder) else cls._open_journal(folder)._fitted(images)
        )
        if fps is not None and dataset.fps != fps:
            raise ArtefactError(
                f"{folder}: recorded at {dataset.fps} frames per second, {fps} is needed; "
                "record again at that control rate, or use a model of the dataset's rate"
            )
        return dataset

    @classmethod
    def _open_external(cls, folder: Path, images: ImageFit | None) -> Self:
        from worldrl.data.lerobot.external.episode import open_external

        external = open_external(folder, images)
        return cls(external.header, (_Entry(record, read) for record, read in external.records()), str(folder))

    @classmethod
    def _open_journal(cls, folder: Path) -> Self:
        from worldrl.data.lerobot.recoveries import parts_of

        journal = read_journal(folder)
        if journal.promised > len(journal.records):
            raise ArtefactError(
                f"{folder / JOURNAL_PATH}: lists {len(journal.records)} episodes, {INFO_PATH} promises "
                f"{journal.promised}; the journal was cut: restore it from a copy, or {REPAIR}"
            )
        header = journal.header
        stored = ((record, partial(read_episode, folder, header, record)) for record in journal.records)
        entries = (_Entry(*part) for record, read in stored for part in parts_of(record, read))
        return cls(header, entries, str(folder))

    def _fitted(self, images: ImageFit | None) -> Self:
        """The same recordings with images of another size; their content is another one."""
        if images is None or images.size == self.image_size:
            return self
        entries = [
            _Entry(
                replace(record, content=_fitted_content(record, images)), partial(_fitted_episode, entry.read, images)
            )
            for entry, record in zip(self._entries, self.records, strict=True)
        ]
        known = self.header.fit is not Fit.refuse or keeps_aspect(self.image_size, images.size)
        fit = self.header.fit if known else images.fit
        return type(self)(replace(self.header, image_size=images.size, fit=fit), entries, self.source)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode], *, fps: float, embodiment: AnyEmbodiment) -> Self:
        """Make a dataset in memory; the first episode decides cameras and image size.

        SettingError without an episode; ArtefactError for one that breaks its contract or differs from the first.
        """
        if not episodes:
            raise SettingError("from_episodes needs at least one episode, got none")
        first = episodes[0]
        rows, columns = first.frames.shape[2:4]
        header = DatasetHeader(round(fps), tuple(first.cameras), (rows, columns), embodiment)
        records: list[EpisodeRecord] = []
        for number, episode in enumerate(episodes):
            check_episode(episode, header, f"episode {number}")
            records.append(new_record(episode, records[-1] if records else None, 0, f"episode {number}"))
        return cls(header, (_Entry(r, partial(_decoded, e)) for r, e in zip(records, episodes, strict=True)))

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._entries)

    def __getitem__(self, index: int | slice) -> Any:
        """Return one episode (decoded on demand), or the subset of a slice."""
        if isinstance(index, slice):
            return self.subset(range(len(self))[index])
        return self._entries[index].read()

    def __iter__(self) -> Iterator[Episode]:
        """Decode one episode after the other."""
        return (entry.read() for entry in self._entries)

    def __repr__(self) -> str:
        """Show size, not content."""
        steps = sum(record.length for record in self.records)
        return f"EpisodeDataset({len(self)} episodes, {steps} steps, {self.fps} fps, cameras {self.cameras})"

    @property
    def records(self) -> tuple[EpisodeRecord, ...]:
        """What is known of each episode without decoding it; ``index`` is the number in its own folder."""
        return tuple(entry.record for entry in self._entries)

    @property
    def fps(self) -> int:
        """Frames per second."""
        return self.header.fps

    @property
    def embodiment(self) -> AnyEmbodiment:
        """Constants of the robot."""
        return self.header.embodiment

    @property
    def cameras(self) -> tuple[str, ...]:
        """Camera names, in the order of the episodes' camera axis."""
        return self.header.cameras

    @property
    def image_size(self) -> tuple[int, int]:
        """Rows and columns of every camera, in pixels."""
        return self.header.image_size

    @property
    def fingerprint(self) -> str:
        """A hash of all content in order, however images are encoded; of external data, of metadata and file sizes."""
        digest = hashlib.sha256(json.dumps(self.header.to_json(), sort_keys=True).encode())
        for record in self.records:
            digest.update(record.content.encode())
        return digest.hexdigest()

    def tasks(self) -> tuple[str, ...]:
        """Return the task names, sorted."""
        return tuple(sorted({record.task for record in self.records}))

    def summary(self) -> dict[str, Any]:
        """Count episodes, steps, successes and sources per task, as plain JSON values."""
        tasks = {task: _count([r for r in self.records if r.task == task]) for task in self.tasks()}
        return {**_count(self.records), "fps": self.fps, "cameras": list(self.cameras), "tasks": tasks}

    def load(self, workers: int | None = None, *, scratch: Path | None = None) -> Self:
        """Decode everything in threads (None: as many as processors), into memory or, if large, a file in ``scratch``.

        SettingError without the memory, or the disk.
        """
        ends = np.cumsum([0, *(record.rows for record in self.records)])
        (rows, columns), views = self.image_size, len(self.cameras)
        shape = (int(ends[-1]), views, rows, columns, 3)
        asked = f"{self.source}: {ends[-1]:,} frames of {views} cameras, {columns} by {rows} pixels each"
        places: Iterable[NDArray[np.uint8] | None] = repeat(None)
        if scratch is not None and is_large(math.prod(shape)):
            frames = mapped_array(shape, np.uint8, scratch, asked)
            places = (frames[first:last] for first, last in pairwise(ends))
        else:
            require_memory(math.prod(shape), asked)
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            return type(self)(self.header, pool.map(_Entry.loaded, self._entries, places), self.source)

    def subset(self, choice: Callable[[EpisodeRecord], bool] | Iterable[int]) -> Self:
        """Keep episodes by a predicate on the record, or by positions in order; SettingError outside the dataset."""
        if callable(choice):
            return type(self)(self.header, (entry for entry in self._entries if choice(entry.record)), self.source)
        positions = [int(position) for position in choice]
        for position in positions:
            if not 0 <= position < len(self):
                raise SettingError(f"subset: position {position} is outside 0..{len(self) - 1}")
        return type(self)(self.header, (self._entries[position] for position in positions), self.source)

    def concatenate(self, *others: EpisodeDataset) -> Self:
        """Put datasets one after the other; ArtefactError where fps, cameras, image size or embodiment differ."""
        every = (self, *others)
        require_alike(every, "fps", "cameras", "image_size", "embodiment", "fit")
        suite = self.header.suite if len({dataset.header.suite for dataset in every}) == 1 else ""
        source = ", ".join(dict.fromkeys(dataset.source for dataset in every))
        entries = (entry for dataset in every for entry in dataset._entries)
        fit = next((dataset.header.fit for dataset in every if dataset.header.fit is not Fit.refuse), Fit.refuse)
        return type(self)(replace(self.header, suite=suite, fit=fit), entries, source)


ALIKE = {
    "fps": "record both at one control rate",
    "cameras": "record both with the same cameras, in the same order",
    "image_size": "record both with the same image_size",
    "embodiment": "give datasets of one robot",
    "fit": "bring the images of both to size in the same way",
}
"""Fields of a header that joined datasets share, where both state one, and what to do where two differ."""


def require_alike(datasets: Sequence[EpisodeDataset], *names: str) -> None:
    """ArtefactError, with folders and fields, where datasets differ in fields of :data:`ALIKE`."""
    first, *others = datasets
    mine = first.header.to_json()
    for other in others:
        theirs = other.header.to_json()
        if differing := [
            name for name in names if mine.get(name, theirs.get(name)) != theirs.get(name, mine.get(name))
        ]:
            shown = difference(*({name: one[name] for name in differing} for one in (mine, theirs)))
            mend = "; ".join(ALIKE[name] for name in differing)
            raise ArtefactError(
                f"data: {first.source} and {other.source} cannot be used together, they differ in {shown}; {mend}"
            )


def open_recorded(folder: Path | str, images: ImageFit | None = None) -> EpisodeDataset:
    """Open a dataset as :meth:`EpisodeDataset.open` does; ArtefactError where it holds no episode."""
    dataset = EpisodeDataset.open(folder, images=images)
    if not len(dataset):
        raise ArtefactError(f"{folder}: holds no episode; record some with `worldrl collect`, or give another dataset")
    return dataset


def assumed(episodes: Iterable[Episode | EpisodeRecord]) -> tuple[str, ...]:
    """What was assumed of external datasets' numbers, in words; nothing where worldrl recorded them itself."""
    texts = (text for episode in episodes for text in episode.meta.get("lerobot", {}).get("assumed", ()))
    return tuple(dict.fromkeys(texts))


def _count(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    sources = sorted({str(record.source) for record in records})
    return {
        "episodes": len(records),
        "steps": sum(record.length for record in records),
        "frames": sum(record.rows for record in records),
        "successes": sum(record.success for record in records),
        "sources": {source: sum(str(record.source) == source for record in records) for source in sources},
    }
