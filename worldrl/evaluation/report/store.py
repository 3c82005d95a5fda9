"""A report's data on disk, so that the page can be rebuilt at any time without weights or simulator.

Layout, inside a run directory::

    report.json               ReportData without frames and videos: ``{"schema": 1, "kind": "report", "digest": …, "data": {…}}``
    filmstrips/01.png         strip 1 as one labelled image, for people; never read back
    filmstrips/01-row-1.png   frames of its first row side by side, pixel for pixel: ``[Y, T·X, 3]``
    videos/01.mp4             video 1
    report.html               the page, made from all of these by :func:`publish`

``data`` holds the fields of :class:`ReportData` under their own names, each record as an object of its fields.
A filmstrip's ``rows`` is a list of ``{"name", "frames", "sha256"}`` with ``frames`` the number ``T``; a video is
``{"title", "caption", "sha256"}``. NaN and infinity are written as null. File names follow from the position alone:
no path is ever read from the JSON. Each file appears whole, ``report.json`` last; the checksums tell a write that
was killed half-way from a finished one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from worldrl.core.errors import ArtefactError, nearest
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.jsonfile import check_digest, digest, plain, read_json, write_json
from worldrl.core.storage.provenance import package_versions
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.report.filmstrip import decode_png, draw_filmstrip, encode_png
from worldrl.evaluation.report.model import Filmstrip, Frames, ReportData, SuccessRow, Video
from worldrl.evaluation.report.page import render, video_path

SCHEMA = 1
FILE = "report.json"
PAGE = "report.html"
WITH_PAGE = (
    "demo, train-vla, rank, evaluate-world-model, `judge`, imagine, train-idm, align-world-model, benchmark, benchmark-offline, "
    "check-protocol, reproduce, gpu-check"
)
"""Commands that end with a page."""
BINARY = ("filmstrips", "videos")
FIELDS = get_type_hints(ReportData)
RECORDS = {
    name: get_args(hint)[0]
    for name, hint in FIELDS.items()
    if name not in ("overall", *BINARY) and any(map(is_dataclass, get_args(hint)))
}
"""Field of the report → what it holds a sequence of."""


def publish(run: RunDirectory, data: ReportData) -> Path:
    """Complete a page with its run's configuration, package versions and command, save its data and write it.

    Raises ArtefactError: as :func:`save_report_data`, or the page cannot be written.
    """
    data = replace(
        data,
        configuration=run.config,
        versions={**package_versions(), **data.versions},
        provenance={"command": run.resume_command, "config hash": run.config_hash[:16], **data.provenance},
    )
    save_report_data(data, run.path)
    write_file(run.path / PAGE, render(data).encode(), error=ArtefactError)
    return run.path / PAGE


def save_report_data(data: ReportData, folder: Path) -> None:
    """Write a report's data to a run directory, which is made if missing.

    Raises ArtefactError (if the folder cannot be written, or the configuration holds what JSON cannot).
    """
    content = {name: _plain(getattr(data, name)) for name in FIELDS if name not in BINARY}
    content["filmstrips"] = [_save_strip(folder, index, strip) for index, strip in enumerate(data.filmstrips, 1)]
    content["videos"] = save_videos(data.videos, folder)
    entry = {"schema": SCHEMA, "kind": "report", "digest": digest(content), "data": content}
    write_json(folder / FILE, entry, error=ArtefactError)


def save_videos(videos: Sequence[Video], folder: Path) -> list[dict[str, Any]]:
    """Write a report's films, also before the report itself; return their records."""
    return [_save_video(folder, index, video) for index, video in enumerate(videos, 1)]


def load_report_data(folder: Path) -> ReportData:
    """Read what :func:`save_report_data` wrote to a run directory.

    Raises ArtefactError (if a file is missing, damaged, of another schema, or of another write than the rest).
    """
    content = _content(folder / FILE)
    try:
        for name, record in RECORDS.items():
            content[name] = tuple(record(**entry) for entry in content.get(name, ()))
        content["overall"] = SuccessRow(**content["overall"]) if content.get("overall") else None
        for name, load in (("filmstrips", _load_strip), ("videos", _load_video)):
            content[name] = tuple(load(folder, index, entry) for index, entry in enumerate(content.get(name, ()), 1))
        return ReportData(**content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArtefactError(
            f"{folder / FILE}: a record is not of schema {SCHEMA} ({error}); run the job again"
        ) from error


def from_run_dir(run_dir: Path) -> ReportData:
    """Read a run directory's report data.

    Raises ArtefactError (if the directory or its ``report.json`` is missing or damaged, with what to do).
    """
    if not run_dir.is_dir():
        raise ArtefactError(f"run_dir: {run_dir} is not a directory; give the run directory of a finished command")
    if not (run_dir / FILE).is_file():
        raise ArtefactError(
            f"run_dir: {run_dir} holds no {FILE}: its command has not finished, or writes no page. These do: {WITH_PAGE}; the same command line resumes the run"
        )
    return load_report_data(run_dir)


def _plain(value: Any) -> Any:
    """Turn a record, or a sequence of records, into plain JSON values; not finite becomes null."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    shallow = value
    if is_dataclass(value):
        shallow = {field.name: getattr(value, field.name) for field in fields(value)}
    return plain(shallow, where=FILE, nonfinite="null", error=ArtefactError)


def _content(path: Path) -> dict[str, Any]:
    raw = read_json(path, error=ArtefactError)
    found = {key: raw.get(key) for key in ("kind", "schema")}
    if found != {"kind": "report", "schema": SCHEMA}:
        raise ArtefactError(f"{path}: needs kind 'report' and schema {SCHEMA}, got {found}; run the job again")
    data = check_digest(path, raw, "data", error=ArtefactError, mend="run the job again")
    for name in data:
        if name not in FIELDS:
            raise ArtefactError(f"{path}: unknown field {name!r}{nearest(name, FIELDS)}")
    return data


def _row_path(index: int, row: int) -> str:
    return f"filmstrips/{index:02d}-row-{row}.png"


def _save_strip(folder: Path, index: int, strip: Filmstrip) -> dict[str, Any]:
    _write(folder / f"filmstrips/{index:02d}.png", encode_png(draw_filmstrip(strip)))
    rows = [
        {
            "name": name,
            "frames": len(frames),
            "sha256": _write(folder / _row_path(index, row), encode_png(_sheet(frames))),
        }
        for row, (name, frames) in enumerate(strip.rows.items(), 1)
    ]
    return {"title": strip.title, "caption": strip.caption, "labels": list(strip.labels), "rows": rows}


def _save_video(folder: Path, index: int, video: Video) -> dict[str, Any]:
    return {"title": video.title, "caption": video.caption, "sha256": _write(folder / video_path(index), video.mp4)}


def _load_strip(folder: Path, index: int, entry: Mapping[str, Any]) -> Filmstrip:
    rows = {item["name"]: _frames(folder / _row_path(index, row), item) for row, item in enumerate(entry["rows"], 1)}
    return Filmstrip(entry["title"], entry["caption"], rows, tuple(entry["labels"]))


def _load_video(folder: Path, index: int, entry: Mapping[str, Any]) -> Video:
    return Video(entry["title"], entry["caption"], _read(folder / video_path(index), entry["sha256"]))


def _sheet(frames: Frames) -> Frames:
    """Lay frames ``[T, Y, X, 3]`` side by side; a row without frames keeps its size as one black frame."""
    _, height, width, _ = frames.shape
    full = frames if len(frames) else np.zeros((1, height, width, 3), np.uint8)
    return np.ascontiguousarray(full.transpose(1, 0, 2, 3)).reshape(height, -1, 3)


def _frames(path: Path, item: Mapping[str, Any]) -> Frames:
    sheet = decode_png(_read(path, item["sha256"]), str(path))
    steps = max(item["frames"], 1)
    frames = sheet.reshape(sheet.shape[0], steps, -1, 3).transpose(1, 0, 2, 3)
    return np.ascontiguousarray(frames[: item["frames"]])


def _write(path: Path, data: bytes) -> str:
    write_file(path, data, error=ArtefactError)
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, sha256: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read ({error.strerror}); run the job again to write it anew") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ArtefactError(f"{path}: is not the file that {FILE} was written with; run the job again to write both")
    return data
