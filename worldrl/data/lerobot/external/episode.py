r"""Rows of an external LeRobotDataset as the project's episodes, decoded one at a time when they are asked for.

``N`` rows hold ``N`` observations and ``N`` actions; an episode of ``T = N - 1`` actions has ``T + 1`` frames. Which action
has no frame depends on what a row pairs::

    observed before its action     row 0    row 1   ...       the last action has no frame after it and is left out;
                                      \  a0  / \  a1  /       its success counts for the last frame there is
    observed after it                  row 0   row 1  ...     action 0 has no frame before it and is left out
                                   a0  /   \ a1 /

LIBERO's command is the measured pose with the last gripper command; that of joints is the target before, and at first the
measured position. Contact of fingers is recorded by worldrl alone and is nowhere true of others.

Shapes legend: ``N`` rows, ``T`` actions, ``V`` cameras, ``Y X`` pixels, ``A`` and ``S`` numbers of action and state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError
from worldrl.core.image_fit import Fit, ImageFit, keeps_aspect
from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.data.lerobot.external.bounds import within_bounds
from worldrl.data.lerobot.external.digest import has_digest, require_digest
from worldrl.data.lerobot.external.folder import (
    WHOLE,
    ExternalEpisode,
    ExternalFolder,
    clip_of,
    read_columns,
    read_folder,
    with_films,
)
from worldrl.data.lerobot.external.gripper import in_robots_numbers
from worldrl.data.lerobot.external.images import film_images, fitted, read_film, stored_images
from worldrl.data.lerobot.external.meaning import BEFORE, Meaning, header_copy, read_meaning
from worldrl.data.lerobot.external.rows import number_faults, read_rows, require_rows
from worldrl.data.lerobot.external.stated import numbers, scalars
from worldrl.data.lerobot.external.success import is_feature, succeeded
from worldrl.data.lerobot.external.table import whole
from worldrl.data.lerobot.external.times import Part, require_parts, require_steps, times_by_episode, times_outside
from worldrl.data.lerobot.format import DatasetHeader, EpisodeRecord, check_episode
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.libero.observation import command_vector, robot_observation

UNSEEN = "{bare} of {films} films are undamaged: without a stored SHA-256 damage can remain unseen (SHA256SUMS)"
SOURCE = "lerobot"
"""Label of these episodes."""


@dataclass(frozen=True)
class ExternalDataset:
    """An external dataset, opened."""

    folder: ExternalFolder  # its metadata
    meaning: Meaning  # of its numbers
    header: DatasetHeader  # what its episodes share

    def records(self) -> Iterator[tuple[EpisodeRecord, Callable[[], Episode]]]:
        """What is known of each episode that is kept, and what decodes it."""
        facts, success = self.meaning.facts(self.folder), successes(self.folder, self.meaning)
        tasks = {sentence: index for index, sentence in self.folder.sentences.items()}
        for episode in self.folder.episodes:
            meta = {"source": SOURCE, "index": episode.index, "lerobot": facts}
            fields = {"task_index": tasks[episode.sentence], "success": episode.index in success, "meta": meta}
            record = self._record(episode, **fields)
            yield record, partial(read_episode, self, episode, record)

    def _record(self, episode: ExternalEpisode, *, success: bool, **fields: Any) -> EpisodeRecord:
        return EpisodeRecord(
            index=episode.index,
            length=episode.rows - 1,
            first_row=episode.first_row,
            task=self.meaning.tasks.get(episode.sentence) or "_".join(episode.sentence.split()),
            instruction=episode.sentence,
            terminated=success,
            truncated=not success,
            success=success,
            sha256="",
            content=hashlib.blake2b(f"{self._identity}, {episode.index}]".encode(), digest_size=16).hexdigest(),
            **fields,
        )

    @cached_property
    def _identity(self) -> str:
        """Metadata, file sizes, meaning, as an open JSON list. The files carry no digest and are not read for it."""
        meaning = {**self.meaning.facts(self.folder), "folder": ""}
        header = replace(self.header, fit=Fit.refuse).to_json()  # the meaning states it
        return json.dumps([self.folder.identity, header, meaning, repr(self.meaning)])[:-1]


def open_external(path: Path, wanted: ImageFit | None = None) -> ExternalDataset:
    """Open a folder, and say once per process what was assumed about it.

    ``wanted`` replaces its ``image_size`` and ``fit``. ArtefactError for damaged metadata; SettingError, with the line
    to write, where the meaning of its numbers is unknown.
    """
    folder = read_folder(path)
    require_rows(folder)
    meaning = read_meaning(folder)
    if wanted is not None and wanted.size != meaning.image_size:
        meaning = replace(meaning, image_size=wanted.size, fit=wanted.fit)
    folder, robot = with_films(folder, meaning.cameras.values()), meaning.robot
    films = {clip.file for episode in folder.episodes for clip in episode.clips.values()}
    if bare := sum(not has_digest(path, film) for film in films):
        meaning = replace(meaning, assumed=(*meaning.assumed, UNSEEN.format(bare=bare, films=len(films))))
    rate, fit = round(robot.control_hz), _header_fit(folder, meaning)
    header = DatasetHeader(rate, tuple(meaning.cameras), meaning.image_size, robot, fit=fit)
    _tell(path.resolve(), meaning.assumed)
    return ExternalDataset(folder, meaning, header)


def _header_fit(folder: ExternalFolder, meaning: Meaning) -> Fit:
    """How images of another aspect get their size, here or before lerobot's tools edited the recording."""
    sizes = [folder.features[name].image_size for name in meaning.cameras.values()]
    if not all(keeps_aspect(size, meaning.image_size) for size in sizes):
        return meaning.fit
    header = header_copy(folder)
    return Fit.refuse if header is None else header.fit


@cache
def _tell(path: Path, assumed: tuple[str, ...]) -> None:
    for text in assumed:
        console().print(f"{path.name}: assumed: {text}", markup=False, highlight=False, soft_wrap=True)


def successes(folder: ExternalFolder, meaning: Meaning) -> frozenset[int]:
    """Numbers of the episodes that fulfilled their task at some frame that they keep."""
    if not is_feature(meaning.success):
        return succeeded(folder, meaning.success)
    found: set[int] = set()
    for file in folder.kept:
        table = read_rows(folder, file, [meaning.success])
        episode, frame, flag = (scalars(table, name, file) for name in table.column_names)
        counts = (flag > 0) & ((meaning.observed == BEFORE) | (frame > 0))
        found |= set(episode[counts].astype(np.int64).tolist())
    return frozenset(found)


# --- one episode ---


def read_episode(dataset: ExternalDataset, episode: ExternalEpisode, record: EpisodeRecord) -> Episode:
    """Decode one episode; ArtefactError, with file and field, where files and metadata disagree."""
    with _left_out_by_mend(dataset.folder, episode):
        table = _rows(dataset, episode)
        times = scalars(table, "timestamp", episode.file)
        require_steps(times, dataset.folder.fps, f"{episode.file}: episode {episode.index}")
    for name, clip in episode.clips.items():
        _require_film(dataset.folder, clip.file, name)
    with _left_out_by_mend(dataset.folder, episode):
        return _decoded(dataset, episode, record, table, times)


@contextmanager
def _left_out_by_mend(folder: ExternalFolder, episode: ExternalEpisode) -> Iterator[None]:
    """Add the line that leaves the episode out to an error about it."""
    try:
        yield
    except ArtefactError as reason:
        folder.selection.refuse({episode.index: " ".join(str(reason).split("\n"))}, folder.numbers)
        raise


def _decoded(
    dataset: ExternalDataset,
    episode: ExternalEpisode,
    record: EpisodeRecord,
    table: Any,
    times: NDArray[np.float64],
) -> Episode:
    meaning, where = dataset.meaning, f"{episode.file}: episode {episode.index}"
    state, action = (numbers(table, parts, where) for parts in (meaning.state, meaning.action))
    spec, path = meaning.robot.actions, dataset.folder.path
    action = in_robots_numbers(action, meaning.gripper, spec)
    action = within_bounds(action, spec, clip=meaning.clip_actions, where=where, path=path)
    command = numbers(table, meaning.command, where) if meaning.command else _command(state, action, meaning)
    contact = scalars(table, meaning.contact, episode.file) if meaning.contact else np.zeros(episode.rows)
    if is_feature(meaning.success):
        flags = scalars(table, meaning.success, episode.file)
    else:  # somebody says it of the whole episode: its end fulfils the task
        flags = np.arange(episode.rows) == (episode.rows - 1 if record.success else -1)
    before = meaning.observed == BEFORE
    made = Episode(
        frames=_frames(dataset, episode, table, times),
        state=_joints_in_robots_numbers(state, meaning),
        command=command,
        action=action[:-1] if before else action[1:],
        reward=_reward(flags > 0, meaning),
        contact=contact > 0,
        terminated=record.terminated,
        truncated=record.truncated,
        instruction=record.instruction,
        task=record.task,
        cameras=dataset.header.cameras,
        meta=dict(record.meta),
        actions=spec,
    )
    check_episode(made, dataset.header, where)
    return made


def _rows(dataset: ExternalDataset, episode: ExternalEpisode) -> Any:
    """Read an episode's rows, found by their own numbers and not by their place, and hold them against the metadata."""
    meaning, features = dataset.meaning, dataset.folder.features
    parts = [part.feature for part in (*meaning.state, *meaning.action, *meaning.command)]
    parts += [name for name in meaning.cameras.values() if features[name].dtype == "image"]
    parts += [name for name in (meaning.success, meaning.contact) if name in features]
    if ("", episode.file) not in dataset.folder.verified:
        require_digest(dataset.folder.path, episode.file)
        dataset.folder.verified.add(("", episode.file))
    columns = list(dict.fromkeys(["episode_index", "frame_index", "task_index", "timestamp", *parts]))
    table = read_columns(episode.file, columns, filters=[("episode_index", "=", episode.index)])
    for text in number_faults(dataset.folder, episode.file, table).values():
        raise ArtefactError(text)
    frames, indices = table["frame_index"].to_pylist(), {whole(task) for task in table["task_index"].to_pylist()}
    if frames != list(range(episode.rows)):
        raise ArtefactError(
            f"{episode.file}: episode {episode.index} has {len(frames)} rows here, the episode table says {episode.rows}, in "
            f"the order of frame_index; {WHOLE}"
        )
    sentences = {dataset.folder.sentences.get(-1 if task is None else task) for task in indices}
    if sentences != {episode.sentence}:
        given = ", ".join(list(dict.fromkeys(map(str, table["task_index"].to_pylist())))[:5])
        raise ArtefactError(
            f"{episode.file}: episode {episode.index}, field 'task_index': [{given}] means "
            f"{sorted(map(repr, sentences))}, the episode table says {episode.sentence!r}; {WHOLE}"
        )
    return table


def _frames(
    dataset: ExternalDataset, episode: ExternalEpisode, table: Any, times: NDArray[np.float64]
) -> NDArray[np.uint8]:
    meaning, cameras, size = dataset.meaning, dataset.meaning.cameras, dataset.meaning.image_size
    frames = np.empty((episode.rows, len(cameras), *size, 3), np.uint8)
    for view, name in enumerate(cameras.values()):
        clip = episode.clips.get(name)
        where = f"{clip.file if clip else episode.file}: episode {episode.index}, field {name!r}"
        pictures = film_images(clip, times, where) if clip else stored_images(table[name].to_pylist(), where)
        for row, picture in enumerate(pictures):
            _require_size(picture, dataset.folder.features[name].image_size, where)
            frames[row, view] = fitted(picture, turn=meaning.pictures, size=size, fit=meaning.fit)
    return frames


def _require_film(folder: ExternalFolder, file: Path, name: str) -> None:
    """Check a film once: its digest, and that each episode in it has its own part."""
    if (name, file) in folder.verified:
        return
    here = [episode for episode in folder.episodes if episode.clips[name].file == file]
    where = f"{file}: field {name!r}"
    try:
        require_digest(folder.path, file)
        film, parts = read_film(file, where), list(_parts(folder, file, name, here))
        unlisted = any(number not in folder.table for number in folder.selection.leave_out)
        require_parts(parts, film, folder.fps, where, longer=unlisted)
    except ArtefactError as reason:  # it concerns all episodes of the film
        folder.selection.refuse({episode.index: str(reason) for episode in here}, folder.numbers)
        raise
    outside = {part.episode: fault for part in parts if (fault := times_outside(part, film, where))}
    folder.selection.refuse(outside, folder.numbers)
    folder.verified.add((name, file))


def _parts(folder: ExternalFolder, file: Path, name: str, kept: Sequence[ExternalEpisode]) -> Iterator[Part]:
    """Return all episodes of a film. Those that are left out have frames there, too."""
    times = {number: span for data in {e.file for e in kept} for number, span in _times(data).items()}
    for index, row in folder.table.items():
        try:
            clip = clip_of(folder, index, name)
        except ArtefactError:
            if index in folder.numbers:
                raise
            continue
        if clip.file == file:
            unknown = (np.nan, np.nan)
            span = unknown if index in folder.selection.leave_out else times.get(index, unknown)
            yield Part(index, row.rows, clip.start_s, clip.end_s, *span)


def _times(data: Path) -> dict[int, tuple[float, float]]:
    table = read_columns(data, ["episode_index", "timestamp"])
    return times_by_episode(*(scalars(table, column, data) for column in table.column_names))


def _require_size(picture: NDArray[np.uint8], size: Sequence[int], where: str) -> None:
    if picture.shape[:2] != tuple(size):
        raise ArtefactError(f"{where}: an image of {list(picture.shape[:2])} pixels, info.json says {list(size)}")


def _joints_in_robots_numbers(state: NDArray[np.float32], meaning: Meaning) -> NDArray[np.float32]:
    """Joints are measured in the numbers that they are commanded in; LIBERO's fingers are not."""
    joints = isinstance(meaning.robot, JointEmbodiment)
    return in_robots_numbers(state, meaning.gripper, meaning.robot.actions) if joints else state


def _command(state: NDArray[np.float32], action: NDArray[np.float32], meaning: Meaning) -> NDArray[np.float32]:
    """The robot's command at each row, ``[N, A]``, where no feature holds it."""
    before = meaning.observed == BEFORE
    if isinstance(meaning.robot, JointEmbodiment):
        first = _joints_in_robots_numbers(state, meaning)[:1]
        return np.concatenate([first, action[:-1]]) if before else action
    gripper = np.append(np.float32(libero_facts.NO_OP[6]), action[:-1, 6]) if before else action[:, 6]
    observed = (robot_observation(row[:3], row[3:6], row[6:]) for row in state)
    return np.stack([command_vector(obs, float(grip)) for obs, grip in zip(observed, gripper, strict=True)])


def _reward(flags: NDArray[np.bool_], meaning: Meaning) -> NDArray[np.float32]:
    """Rewards of the ``T`` kept actions from the flags of ``N`` rows."""
    reward = flags[1:].copy() if meaning.observed != BEFORE else flags[:-1].copy()
    reward[-1] |= flags[-1]
    return reward.astype(np.float32)
