"""The metadata of a Minari dataset: types and sizes are checked before Minari makes spaces of them or a file is opened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from gymnasium import spaces

from worldrl.core.errors import ArtefactError
from worldrl.core.extras import require
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.offline.columns import fault
from worldrl.data.offline.layout import Layout, from_json
from worldrl.data.offline.minari_files import FORMATS

METADATA = "metadata.json"
OWN = "worldrl"
"""Key of the metadata under which provenance of our own lies."""
PARTS = "worldrl_observation_parts"
"""Key under which the parts of flattened observations lie, in their order."""
NEEDED = ("observation_space", "action_space", "data_format", "total_episodes", "total_steps")
TEXTS = ("observation_space", "action_space", "data_format", "dataset_id", "env_spec", "eval_env_spec")
LARGEST = 10**6
"""Numbers that one space may have: Gymnasium keeps bounds of each in memory."""


def read_metadata(data: Path) -> tuple[dict[str, Any], dict[str, spaces.Space[Any]]]:
    """Read and check the metadata.

    Args:
        data: the folder in which they lie.

    Returns:
        The metadata, and the spaces of ``observations`` and ``actions``.

    Raises:
        ArtefactError: a field is missing, or of another type or size than Minari writes.
        MissingExtraError: Minari is not installed.
    """
    storage = require("minari.dataset.minari_storage", extra="offline")
    file = data / METADATA
    metadata = read_json(file, error=ArtefactError)
    for name in NEEDED:
        # Without its spaces Minari would make the environment, and so import what the file names.
        if name not in metadata:
            raise ArtefactError(f"{file}: field {name!r} is missing; write the dataset with Minari 0.4 or newer")
    _check_types(metadata, file)
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


def _check_types(metadata: Mapping[str, Any], file: Path) -> None:
    """Require the types that Minari writes of every field that is read."""
    for name in TEXTS:
        if not isinstance(metadata.get(name, ""), str | None):
            raise ArtefactError(f"{file}: field {name!r} must be text, got {str(metadata[name])[:100]}; copy it again")
    if metadata["data_format"] not in FORMATS:
        raise ArtefactError(
            f"{file}: field 'data_format' is {metadata['data_format']!r}; only {', '.join(FORMATS)} are read"
        )
    for name in ("total_episodes", "total_steps"):
        if type(metadata[name]) is not int or not 0 <= metadata[name] < 2**48:
            raise ArtefactError(
                f"{file}: field {name!r} must be a count, got {str(metadata[name])[:100]}; copy it again"
            )
    for name in ("ref_min_score", "ref_max_score"):
        value = metadata.get(name)
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise ArtefactError(
                f"{file}: field {name!r} must be a number, got {str(value)[:100]}; correct or remove it"
            )
    if not isinstance(metadata.get(OWN, {}), Mapping):
        raise ArtefactError(f"{file}: field {OWN!r} must be an object; remove it")


def stored_parts(metadata: Mapping[str, Any], file: Path, width: int) -> Layout | None:
    """Return the parts that flattened observations of ``width`` numbers were written with; None where none are named.

    Raises:
        ArtefactError: no parts, or not of that many numbers.
    """
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
    """Require vectors of numbers: observations may be a Dict or Tuple of them, actions are fractions.

    Raises:
        ArtefactError: naming the part.
    """
    if name.startswith("observations") and isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_vectors(part, source, f"{name}/{key}")
        return
    rank = (0, 1) if name != "actions" else (1,)
    if not isinstance(space, spaces.Box) or len(space.shape) not in rank:
        raise fault(source, "all", name, f"lies in {_short(space)}; only vectors of numbers are read")
    if name == "actions" and space.dtype.kind != "f":
        raise fault(
            source, "all", name, f"are whole numbers, in {_short(space)}; agents here choose fractions of a range"
        )


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
