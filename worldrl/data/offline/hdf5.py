"""HDF5 files of others: arrays of numbers that lie in this very file, of a size that the file can hold.

An HDF5 file may name other files (external links, external storage, virtual datasets); none of them is opened. What a
damaged header says of a size is held against the file's own before memory is asked for.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.data.offline.columns import fault

EXPANDS, SPARE = 1100, 64 * 2**20
"""How many times its own size a file can hold (deflate packs at most 1,032 to 1), and bytes that any file may hold."""
PIECES = 4096
"""Chunks of an array above which its stored bytes are counted: a damaged length asks for millions that are not there."""


class Hdf5:
    """An HDF5 file opened to read; every error of it is an ``ArtefactError`` with file, episode and field.

    Messages call it ``source`` (None: the file), and the whole content ``field`` where it cannot be opened.
    """

    def __init__(self, file: Path, *, source: Path | None = None, field: str = "file") -> None:
        self.h5py: Any = require("h5py", extra="offline")
        self.source = source or file
        self.fault = partial(fault, self.source)
        if not file.is_file():
            raise self.fault("all", field, f"cannot be read (no file {file.name}); copy the dataset again")
        with self._reading("all", field):
            self.size = file.stat().st_size
            self.content: Any = self.h5py.File(file, "r")

    def __enter__(self) -> Self:
        """Return the opened file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.content.close()

    def names(self, at: Any, episode: int | str) -> list[str]:
        """Return the names of a group's members, links among them, sorted."""
        with self._reading(episode, "file"):
            return sorted(at.keys())

    def group(self, at: Any, name: str, episode: int | str) -> Any:
        """Return a group below ``at``; a link is refused."""
        with self._reading(episode, name):
            return self._group(at, name, episode)

    def numbers(self, at: Any, path: str, episode: int | str, *, field: str | None = None) -> NDArray[Any] | None:
        """Return the array at a path of keys below ``at``; None where there is none.

        ``episode`` and ``field`` (None: the path) are for messages. ArtefactError for a link, other storage than this
        file, no numbers, more than the file can hold, damage.
        """
        *groups, last = path.split("/")
        called = field or path
        with self._reading(episode, called):
            for key in groups:
                if not at.id.links.exists(key.encode()):  # does not follow links
                    return None
                at = self._group(at, key, episode)
            if not at.id.links.exists(last.encode()):
                return None
            return self._read(self._member(at, last, episode), episode, called)

    def text(self, at: Any, name: str, missing: str) -> str:
        """Return a text attribute of a group, ``missing`` where there is none."""
        with self._reading("all", name):
            return str(at.attrs.get(name, missing))

    @contextmanager
    def _reading(self, episode: int | str, name: str) -> Generator[None]:
        """Turn whatever h5py raises on damaged files into the error of this field."""
        try:
            yield
        except WorldrlError:
            raise
        except Exception as reason:
            text = " ".join(str(reason).split())[:200]
            raise self.fault(
                episode, name, f"cannot be read ({text}); the file is damaged or cut short: copy it again"
            ) from reason

    def _group(self, at: Any, name: str, episode: int | str) -> Any:
        found = self._member(at, name, episode)
        if not isinstance(found, self.h5py.h5g.GroupID):
            raise self.fault(episode, name, "cannot be read (it is no group); write the dataset again")
        return self.h5py.Group(found)

    def _member(self, at: Any, name: str, episode: int | str) -> Any:
        """Open a member by h5py's low-level calls, which take half the time of its own."""
        key = name.encode()
        if at.id.links.get_info(key).type != self.h5py.h5l.TYPE_HARD:
            raise self.fault(episode, name, "is a link, which is not followed; copy the data into the file")
        return self.h5py.h5o.open(at.id, key)

    def _read(self, dataset: Any, episode: int | str, name: str) -> NDArray[Any]:
        h5d, h5s = self.h5py.h5d, self.h5py.h5s
        if not isinstance(dataset, h5d.DatasetID):
            raise self.fault(episode, name, "is no array of numbers; write the dataset again")
        plan = dataset.get_create_plist()
        if plan.get_layout() == h5d.VIRTUAL or plan.get_external_count():
            raise self.fault(episode, name, "names other files, which are not opened; copy the data into the file")
        dtype, shape = dataset.dtype, dataset.shape
        if dtype.kind not in "fiub":
            raise self.fault(episode, name, f"holds {dtype}, not numbers; convert it")
        chunk = plan.get_chunk() if plan.get_layout() == h5d.CHUNKED else ()
        needed = max(math.prod(shape), math.prod(chunk)) * dtype.itemsize  # a chunk is read whole
        if needed > EXPANDS * self.size + SPARE:
            raise self.fault(episode, name, f"claims {needed} bytes in a file of {self.size}; copy the dataset again")
        pieces = math.prod(-(-rows // part) for rows, part in zip(shape, chunk, strict=True)) if chunk else 1
        held = dataset.get_storage_size() * (EXPANDS if plan.get_nfilters() else 1) if pieces > PIECES else needed
        if held < math.prod(shape) * dtype.itemsize:
            raise self.fault(episode, name, f"claims {needed} bytes and stores {held} at most; copy the dataset again")
        result = np.empty(shape, dtype)
        if result.size:
            dataset.read(h5s.ALL, h5s.ALL, result)
        return result
