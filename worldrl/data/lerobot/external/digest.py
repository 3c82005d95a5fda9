"""Stored SHA-256 digests of an external LeRobotDataset's files.

lerobot itself stores none. Three places may have one:

- ``.cache/huggingface/download/FILE.metadata``, which ``hf download --local-dir`` writes: commit, digest, time;
- the name of the blob that a file in Hugging Face's cache is a link to;
- ``SHA256SUMS`` in the dataset's folder, as ``sha256sum`` prints it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from worldrl.core.errors import ArtefactError

HUB = Path(".cache/huggingface/download")
SUMS = "SHA256SUMS"
SHA256 = re.compile(r"[0-9a-f]{64}")


def require_digest(folder: Path, file: Path) -> None:
    """Compare a file with every digest stored of it, if any; ArtefactError where it is missing or another."""
    stored = list(_stored(folder, file.relative_to(folder)))
    if not stored:
        return
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as reason:
        raise ArtefactError(f"{file}: cannot be read ({reason})") from reason
    for place, expected in stored:
        if found != expected:
            raise ArtefactError(
                f"{file}: damaged or changed: its SHA-256 is {found[:12]}…, {place} says {expected[:12]}…; download it "
                f"again, or delete the digest in {place} if you changed the file yourself"
            )


def has_digest(folder: Path, file: Path) -> bool:
    """Whether a SHA-256 of one of the dataset's files is stored; ArtefactError where a place of them is damaged."""
    return next(_stored(folder, file.relative_to(folder)), None) is not None


def _stored(folder: Path, name: Path) -> Iterator[tuple[Path, str]]:
    """Return each digest of a file, and where it is stored. The hub's digest of a small file is no SHA-256."""
    hub = folder / HUB / f"{name}.metadata"
    if hub.is_file():
        yield from ((hub, line) for line in _lines(hub)[1:2] if SHA256.fullmatch(line))
    blob = (folder / name).resolve()
    if blob.parent.name == "blobs" and SHA256.fullmatch(blob.name):
        yield blob, blob.name
    sums = folder / SUMS
    if sums.is_file():
        entries = (line.split(maxsplit=1) for line in _lines(sums))
        wanted = {name.as_posix(), f"./{name.as_posix()}"}
        yield from ((sums, e[0]) for e in entries if len(e) == 2 and e[1].removeprefix("*") in wanted)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as reason:
        raise ArtefactError(f"{file}: cannot be read ({reason}); download it again or delete it") from reason
