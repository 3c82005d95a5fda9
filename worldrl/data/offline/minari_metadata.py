"""The metadata of a Minari dataset: types and sizes are checked before Minari makes spaces of them or a file is opened."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gymnasium import spaces

from worldrl.core.errors import ArtefactError
from worldrl.core.extras import require
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.typed import from_plain
from worldrl.data.offline.columns import fault
from worldrl.data.offline.layout import Layout, from_json
from worldrl.data.offline.minari_files import FORMATS

METADATA = "metadata.json"
OWN = "worldrl"  # Key of the metadata under which provenance of our own lies
PARTS = "worldrl_observation_parts"  # Key under which the parts of flattened observations lie, in their order
MOST = 2**48  # Episodes or steps of one dataset
LARGEST = 10**6  # Numbers that one space may have: Gymnasium keeps bounds of each in memory


@dataclass(frozen=True)
class _Metadata:
    """The fields that are read, with the types that Minari writes; others are ignored."""

    observation_space: str
    action_space: str
    data_format: str
    total_episodes: int
    total_steps: int
    dataset_id: str | None = None
    env_spec: str | None = None
    eval_env_spec: str | None = None
    ref_min_score: float | None = None
    ref_max_score: float | None = None
    worldrl: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.data_format not in FORMATS:
            raise ValueError(f"data_format {self.data_format!r}: only {', '.join(FORMATS)} are read")
        for name in ("total_episodes", "total_steps"):
            if not 0 <= getattr(self, name) < MOST:
                raise ValueError(f"{name} must be a count")


def read_metadata(data: Path) -> tuple[dict[str, Any], dict[str, spaces.Space[Any]]]:
    """Read and check the metadata, and the spaces of ``observations`` and ``actions``.

    ArtefactError where a field is missing, or of another type or size than Minari writes; MissingExtraError without it.
    """
    storage = require("minari.dataset.minari_storage", extra="offline")
    file = data / METADATA
    metadata = read_json(file, error=ArtefactError)
    # Without its spaces, which Minari writes since 0.4, it would make the environment, and import what the file names.
    try:
        from_plain(_Metadata, metadata, where=str(file), error=ArtefactError, others=True)
    except ArtefactError as reason:
        raise ArtefactError(f"{reason}; copy the dataset again, or write it with Minari 0.4 or newer") from reason
    found: dict[str, spaces.Space[Any]] = {}
    for field, name in (("observation_space", "observations"), ("action_space", "actions")):
        try:
            _check_size(json.loads(metadata[field]))
            found[name] = storage.deserialize_space(metadata[field])
        except Exception as reason:  # Minari and Gymnasium raise what they like on texts that are no space
            text = " ".join(str(reason).split())[:200]
            raise ArtefactError(
                f"{file}: field {field!r} is no space of Minari ({type(reason).__name__}: {text}); copy the dataset again"
            ) from reason
        check_vectors(found[name], data, name)
    return metadata, found


def stored_parts(metadata: Mapping[str, Any], file: Path, width: int) -> Layout | None:
    """Return the parts that flattened observations of ``width`` numbers were written with; None where none are."""
    try:
        found = from_json(metadata.get(PARTS))
    except ValueError as reason:
        raise ArtefactError(f"{file}: field {PARTS!r} {reason}; copy the dataset again") from reason
    if found is not None and sum(size for _, size in found) != width:
        raise ArtefactError(f"{file}: field {PARTS!r} does not name the {width} numbers of an observation; correct it")
    return found


def _check_size(space: Any) -> None:
    """Require that a space needs no more memory than vectors do, before it is made."""
    for part in _leaves(space):
        shape = part.get("shape", [])
        numbers = math.prod(shape) if all(type(x) is int and x >= 0 for x in shape) else LARGEST + 1
        if numbers > LARGEST:
            raise ValueError(f"shape {str(shape)[:60]} is no shape of vectors")


def _leaves(space: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(space, dict):
        raise ValueError("a part is no object")
    held = cast("dict[str, Any]", space)
    inner: Any = held.get("subspaces")
    if inner is None:
        yield held
        return
    for part in inner.values() if isinstance(inner, dict) else inner:
        yield from _leaves(part)


def check_vectors(space: spaces.Space[Any], source: Path, name: str) -> None:
    """Require vectors of numbers: observations may be a Dict or Tuple of them, actions are fractions."""
    if name.startswith("observations") and isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_vectors(part, source, f"{name}/{key}")
        return
    rank = (0, 1) if name != "actions" else (1,)
    if not isinstance(space, spaces.Box) or len(space.shape) not in rank:
        raise fault(source, "all", name, f"lies in {_short(space)}; only vectors of numbers are read")
    if name == "actions" and space.dtype.kind != "f":
        what = f"are whole numbers, in {_short(space)}; agents here choose fractions of a range"
        raise fault(source, "all", name, what)


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
