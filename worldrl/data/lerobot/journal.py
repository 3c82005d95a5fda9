"""The journal of a dataset: one JSON object per line, each with its own checksum.

A line without its newline is the torn tail of a killed writer and does not count; a wrong checksum is damage.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import difference, read_record
from worldrl.data.lerobot.format import (
    INFO_PATH,
    JOURNAL_PATH,
    JOURNAL_SCHEMA,
    LEROBOT_VERSION,
    DatasetHeader,
    EpisodeRecord,
)

REPAIR = "repair_dataset(folder, new_folder) keeps the longest verified prefix"


@dataclass(frozen=True)
class Journal:
    """A journal as read."""

    header: DatasetHeader  # what all episodes share
    records: tuple[EpisodeRecord, ...]  # one per episode, numbered from 0 without gaps
    size: int  # bytes up to the end of the last whole line; anything after it is a torn tail
    promised: int  # episode count of ``info.json``; 0 when it was never written


def seal(entry: Mapping[str, Any]) -> bytes:
    """Return ``entry`` as one line that carries its checksum."""
    body = json.dumps(dict(entry), ensure_ascii=False, allow_nan=False).encode()
    return b'{"check":"%s","entry":%s}\n' % (_checksum(body), body)


def unseal(line: bytes) -> dict[str, Any]:
    """Return the entry of a line of :func:`seal`; ValueError for another line or checksum."""
    match = _LINE.fullmatch(line)
    if match is None or match["check"] != _checksum(match["body"]):
        raise ValueError("the line does not match its checksum")
    return json.loads(match["body"])


_LINE = re.compile(rb'\{"check":"(?P<check>[0-9a-f]{16})","entry":(?P<body>.*)\}\n', re.DOTALL)


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()


def read_journal(folder: Path) -> Journal:
    """Read a journal; ArtefactError for no dataset, another's or newer one, or a damaged line (with its number)."""
    journal, problem = read_journal_prefix(folder)
    if problem is not None:
        raise problem
    return journal


def read_journal_prefix(folder: Path) -> tuple[Journal, ArtefactError | None]:
    """As :func:`read_journal`, but stop before the first damaged episode line and return what is wrong with it."""
    path = folder / JOURNAL_PATH
    info = _check_folder(folder)
    content = path.read_bytes()
    lines = [line + b"\n" for line in content.split(b"\n")[:-1]]
    header = _read_header(path, lines)
    if info.fps not in (None, header.fps):
        raise ArtefactError(
            f"{folder / INFO_PATH}: states {info.fps:g} frames per second, the journal {header.fps}; "
            f"set fps to {header.fps} there, or record again at the other rate"
        )
    if changed := _changed_robot(info, header):
        raise ArtefactError(
            f"{folder / INFO_PATH}: states another robot than the journal, which is what is read ({changed}); write the journal's "
            "there, or record again with the other one"
        )
    records: list[EpisodeRecord] = []
    size = len(lines[0])
    for number, line in enumerate(lines[1:]):
        try:
            records.append(_read_record(line, records))
        except (ValueError, KeyError, TypeError) as error:
            problem = ArtefactError(f"{path}: line {number + 2} (episode {number}) is damaged: {error}; {REPAIR}")
            return Journal(header, tuple(records), size, info.total_episodes), problem
        size += len(line)
    return Journal(header, tuple(records), size, info.total_episodes), None


def _changed_robot(info: _Info, header: DatasetHeader) -> str:
    """Say where the robot of ``info.json`` differs from the journal's; empty where it states none, or the same."""
    own, stated = header.to_json()["embodiment"], info.worldrl.get("embodiment", {})
    return difference(own, own | stated) if isinstance(stated, dict) else f"embodiment: {stated!r}"


def _read_record(line: bytes, earlier: list[EpisodeRecord]) -> EpisodeRecord:
    record = EpisodeRecord.from_json(unseal(line))
    first_row = earlier[-1].first_row + earlier[-1].rows if earlier else 0
    if (record.index, record.first_row) != (len(earlier), first_row):
        raise ValueError(
            f"episode {record.index} at row {record.first_row} follows {len(earlier)} episodes with {first_row} rows"
        )
    return record


def _read_header(path: Path, lines: list[bytes]) -> DatasetHeader:
    try:
        entry = unseal(lines[0])
        schema = entry["schema"]
        header = DatasetHeader.from_json(entry) if schema == JOURNAL_SCHEMA else None
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: the header line is damaged ({error}); restore the file from a copy") from error
    if header is None:
        raise ArtefactError(
            f"{path}: journal schema {schema!r}, this version reads {JOURNAL_SCHEMA}; "
            "read it with the worldrl version that wrote it"
        )
    return header


def _check_folder(folder: Path) -> _Info:
    """Read ``info.json``; say what kind of folder this is when it is not ours."""
    if folder.is_file():
        raise ArtefactError(f"{folder}: is a file; give the dataset's folder, the one that holds {INFO_PATH}")
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: there is no dataset folder; record one with `worldrl collect`")
    info = _read_info(folder)
    version = info.codebase_version
    if version not in (None, LEROBOT_VERSION):
        raise ArtefactError(
            f"{folder / INFO_PATH}: LeRobotDataset {version}, worldrl reads {LEROBOT_VERSION}; "
            "convert it with lerobot's own converter"
        )
    if not (folder / JOURNAL_PATH).is_file():
        kind = "a dataset of worldrl without its journal" if version else "not a dataset"
        raise ArtefactError(
            f"{folder}: {kind}: it has no {JOURNAL_PATH}; restore it from a copy, or give another folder"
        )
    return info


@dataclass(frozen=True)
class _Info:
    """What is needed of ``info.json``."""

    codebase_version: str | None = None
    total_episodes: int = 0
    fps: float | None = None
    worldrl: dict[str, Any] = field(default_factory=dict[str, Any])  # a copy of the header


def _read_info(folder: Path) -> _Info:
    """Read ``info.json``; of a missing one nothing is known."""
    path = folder / INFO_PATH
    if not path.is_file():
        return _Info()
    return read_record(
        path, _Info, error=ArtefactError, mend="delete it and call finalize_dataset, which derives it again"
    )
