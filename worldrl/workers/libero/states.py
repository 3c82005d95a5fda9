"""LIBERO's stored initial states, read without unpickling and stored as one hashed ``.npz`` per suite.

The vendor's ``.pruned_init`` files are zip archives around a pickled float64 array. A pickle is a program: this only
lists its instructions (``pickletools.genops``), takes shape and bytes, and refuses any other content.
"""

from __future__ import annotations

import hashlib
import math
import pickletools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero.facts import STORED_STATES
from worldrl.workers.link.server import Refusal

DIGESTS: Mapping[str, str] = {
    "libero_spatial": "34ca9b09f1c15b4115f45080a36b3e95e28711c6008db2b6caca01f6cbe3f223",
    "libero_object": "cf8c3c71888282d827a96c66a02b4552886cd9bc6c2c0759728401b67bf15799",
    "libero_goal": "447fa76d8be86b6980e98c97d81d21d4737de50870cfc03406baccad3c51d10d",
    "libero_10": "711563a7d4eee69156174786d2eec483d0271585b9300a21a10d957a958a96bf",
    "libero_90": "676b5a93dbe7ff7d429ffe3d15557c98354f164bdac9c88756630b3fccc8518d",
}
"""SHA-256 over the task names and states of each suite (:func:`states_digest`) in hf-libero 0.1.4."""

_NAMES = {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype", "_codecs encode"}


class StatesError(Refusal, ValueError):
    """Stored states are missing, damaged, or not those of the benchmark."""


def read_pruned_init(path: Path) -> NDArray[np.float64]:
    """Read one task's stored states, float64 ``[50, D]``; StatesError where the file is not one of LIBERO's."""
    try:
        with zipfile.ZipFile(path) as archive:
            program = archive.read("archive/data.pkl")
        listing = [(code.name, argument) for code, argument, _ in pickletools.genops(program)]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise StatesError(f"{path}: not a stored-states file of LIBERO ({error}); run setup again") from error
    return _array_of(listing, path)


def _array_of(listing: Sequence[tuple[str, Any]], path: Path) -> NDArray[np.float64]:
    names = {argument for code, argument in listing if code == "GLOBAL"}
    texts = [argument for code, argument in listing if code in ("BINUNICODE", "SHORT_BINUNICODE")]
    shape = _shape(listing)
    if names != _NAMES or not {"f8", "<"} <= set(texts) or shape is None:
        raise StatesError(f"{path}: holds {sorted(names)} instead of one float64 array; it is not LIBERO's")
    payload = max(texts, key=len).encode("latin1")
    if shape[0] != STORED_STATES or len(payload) != 8 * math.prod(shape):
        raise StatesError(f"{path}: {len(payload)} bytes for shape {shape}; expected {STORED_STATES} states of float64")
    return np.frombuffer(payload, "<f8").reshape(shape).copy()


def _shape(listing: Sequence[tuple[str, Any]]) -> tuple[int, int] | None:
    """The two integers before the only TUPLE2 that follows two integers."""
    for (first, rows), (second, columns), (third, _) in zip(listing, listing[1:], listing[2:], strict=False):
        if first.startswith("BININT") and second.startswith("BININT") and third == "TUPLE2":
            return int(rows), int(columns)
    return None


def states_digest(states: Mapping[str, NDArray[np.float64]]) -> str:
    """SHA-256 over names, shapes and bytes, in the order of the tasks."""
    digest = hashlib.sha256()
    for name, values in states.items():
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return digest.hexdigest()


def convert_suite(folder: Path, tasks: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Read a suite's states from the vendor's folder, in the order of its tasks."""
    return {task: read_pruned_init(folder / f"{task}.pruned_init") for task in tasks}


def check_digest(suite: str, states: Mapping[str, NDArray[np.float64]]) -> None:
    """Refuse states that are not the benchmark's with a StatesError."""
    found = states_digest(states)
    if found != DIGESTS[suite]:
        raise StatesError(f"{suite}: stored states have digest {found}, the benchmark's have {DIGESTS[suite]}")


def load_suite(path: Path, suite: str) -> dict[str, NDArray[np.float64]]:
    """Read and check a suite's ``.npz``; StatesError where it is missing, damaged, or not the benchmark's."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            states = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise StatesError(f"{path}: cannot be read ({error}); run `worldrl setup libero` again") from error
    check_digest(suite, states)
    return states
