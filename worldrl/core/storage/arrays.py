"""Named arrays in one ``.npz`` file."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import write_file


def save_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays into one file, as a whole or not at all."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    write_file(file, data.getvalue())


class ArrayRecord:
    """A dataclass whose fields are all arrays."""

    def save(self, file: Path) -> None:
        """Write all arrays into one ``.npz`` file, as a whole or not at all."""
        save_arrays(file, {field.name: getattr(self, field.name) for field in fields(cast("Any", self))})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join records along the first axis of every array."""
        names = [field.name for field in fields(cast("Any", cls))]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read the file of :meth:`save`; ArtefactError where it is missing, truncated or something else."""
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as data:
                return cls(**{field.name: data[field.name] for field in fields(cast("Any", cls))})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ArtefactError(f"{file}: cannot be read: {error}; delete it and run again") from error
