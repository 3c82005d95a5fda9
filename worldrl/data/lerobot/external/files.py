"""Files of a LeRobotDataset that others made: which ones may be read, and Parquet tables in typed errors.

The patterns of a folder's metadata stay inside it: no ``..``, no absolute name, no link to a place outside. Hugging
Face's cache is an exception: its files are links to ``blobs`` of the same dataset.
"""

from __future__ import annotations

import re
import stat
import string
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import within

WHOLE = (
    "download the whole dataset again: hf download USER/DATASET --repo-type dataset --local-dir FOLDER; "
    "of your own recording, correct this file"
)
MAX_PATTERN = 200
NUMBER = re.compile(r"(0?[1-9]?d)?")
"""Formats of a number in a pattern: one digit of width, so that no name grows beyond nine digits."""
PLAIN = re.compile(r"[^\x00-\x1f\x7f\\]*")


def file_of(folder: Path, where: str, pattern: str, numbers: Sequence[int], key: str = "") -> Path:
    """Return the file of numbers of chunk and file, and of a camera's ``key``, by a pattern of ``info.json``.

    ArtefactError, from ``where``, for other fields or formats, or one that leads out of the folder.
    """
    parts = list(_parts(where, pattern))
    values = {"chunk_index": numbers[0], "file_index": numbers[1], "video_key": key}
    name = "".join(text + (format(values[field], spec) if field else "") for text, field, spec in parts)
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not PLAIN.fullmatch(name):
        raise ArtefactError(f"{where} is {pattern!r}: it must name a file inside the folder, not {name!r}; {WHOLE}")
    return folder / path


def files_like(folder: Path, where: str, pattern: str) -> list[Path]:
    """Return every file of the folder that a pattern of data files could mean, sorted."""
    name = "".join(_escaped(text) + ("*" if field else "") for text, field, _ in _parts(where, pattern))
    return sorted(folder.glob(name))


def _escaped(text: str) -> str:
    """Return a glob pattern that matches exactly this text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _parts(where: str, pattern: str) -> Iterator[tuple[str, str, str]]:
    """Split a pattern into literal text, field and format; the three fields of v3.0 only."""
    problem = f"{where} is {pattern[:MAX_PATTERN]!r}, which is no pattern of v3.0"
    try:
        parts = list(string.Formatter().parse(pattern))
    except ValueError as reason:
        raise ArtefactError(f"{problem} ({reason}); {WHOLE}") from reason
    for text, field, spec, conversion in parts:
        known = field in ("chunk_index", "file_index") and NUMBER.fullmatch(spec or "")
        known = known or field is None or (field == "video_key" and not spec)
        if not known or conversion or len(pattern) > MAX_PATTERN:
            raise ArtefactError(
                f"{problem}: it may hold {{chunk_index:03d}}, {{file_index:03d}} and {{video_key}}; {WHOLE}"
            )
        yield text, field or "", spec or ""


def require_file(folder: Path, file: Path) -> None:
    """ArtefactError for what is missing, no regular file, or a link to a place outside the dataset."""
    _require_regular(file)
    target = file.resolve()
    if not within(folder, target):
        raise ArtefactError(f"{file}: a link to {target}, outside the dataset; copy that file to its place")


def _require_regular(file: Path) -> None:
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as reason:
        raise ArtefactError(f"{file}: missing; {WHOLE}") from reason
    except OSError as reason:  # a loop of links, a name that is too long, no permission
        raise ArtefactError(f"{file}: cannot be read ({reason.strerror}); check its name and permissions") from reason
    if not stat.S_ISREG(mode):
        raise ArtefactError(f"{file}: not a regular file but a folder, pipe or device; {WHOLE}")


def _first_line(reason: BaseException) -> str:
    return next(iter(str(reason).splitlines()), "") or type(reason).__name__


def read_columns(file: Path, columns: Sequence[str], **options: Any) -> pa.Table:
    """Read columns of a Parquet file and verify its checksums; ArtefactError where one is missing or damaged."""
    there = read_schema(file).names
    missing = [name for name in columns if name not in there]
    if missing:
        raise ArtefactError(f"{file}: column {missing[0]!r} is missing; it has {', '.join(there[:12])}; {WHOLE}")
    # a folder named x=1 is no column
    plain: dict[str, Any] = {"use_threads": False, "partitioning": None, "page_checksum_verification": True}
    try:
        table = pq.read_table(file, columns=list(columns), **plain, **options)
        table.validate(full=True)
    except (OSError, pa.ArrowException, ValueError, OverflowError) as reason:
        raise _unreadable(file, reason) from reason
    return table


def read_schema(file: Path) -> pa.Schema:
    """Return the types of a Parquet file's columns; ArtefactError where it is missing, damaged, or another file."""
    _require_regular(file)
    try:
        schema = pq.read_schema(file)
        names = schema.names
    except (OSError, pa.ArrowException, ValueError, OverflowError) as reason:
        raise _unreadable(file, reason) from reason
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArtefactError(f"{file}: column {twice!r} is there twice; {WHOLE}")
    return schema


def _unreadable(file: Path, reason: Exception) -> ArtefactError:
    if isinstance(reason, PermissionError):
        return ArtefactError(f"{file}: cannot be read ({reason.strerror}); check its permissions")
    return ArtefactError(f"{file}: not readable as Parquet ({_first_line(reason)}); {WHOLE}")
