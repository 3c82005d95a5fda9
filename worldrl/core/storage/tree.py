"""Nested state (``state_dict`` of modules and optimizers) as plain JSON plus named tensors, without pickle.

Tensors, tuples, non-text keys and non-finite floats, which JSON lacks, become one-key objects::

    {"$tensor": name}   {"$tuple": [...]}   {"$dict": [[key, value], ...]}   {"$float": "inf"}
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from worldrl.core.errors import ArtefactError


def flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Turn nested state into plain JSON, moving tensors into ``tensors`` by path from ``name`` (ArtefactError)."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        items = [flatten(item, f"{name}/{i}", tensors) for i, item in enumerate(cast("list[Any]", value))]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, Mapping):
        return _flatten_mapping(cast("Mapping[Any, Any]", value), name, tensors)
    raise ArtefactError(f"{name}: {type(value).__name__} cannot be stored; use tensors, numbers, text, lists or dicts")


def _flatten_mapping(value: Mapping[Any, Any], name: str, tensors: dict[str, Tensor]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: flatten(item, f"{name}/{key}", tensors) for key, item in value.items()}
    pairs = [[flatten(k, f"{name}/key", {}), flatten(v, f"{name}/{k}", tensors)] for k, v in value.items()]
    return {"$dict": pairs}


def unflatten(spec: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild what :func:`flatten` took apart; ArtefactError where a named tensor is missing."""
    if isinstance(spec, list):
        return [unflatten(item, tensors) for item in cast("list[Any]", spec)]
    if not isinstance(spec, dict):
        return spec
    spec = cast("dict[str, Any]", spec)
    tag = next(iter(spec), "")
    if len(spec) == 1 and tag in _DECODE:
        return _DECODE[tag](spec[tag], tensors)
    return {key: unflatten(item, tensors) for key, item in spec.items()}


def _tensor(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise ArtefactError(f"tensor {name!r} is named by the state but not stored; the artefact is not whole")
    return tensors[name]


_DECODE: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": _tensor,
    "$float": lambda text, _: float(text),
    "$tuple": lambda items, tensors: tuple(unflatten(item, tensors) for item in items),
    "$dict": lambda pairs, tensors: {unflatten(k, tensors): unflatten(v, tensors) for k, v in pairs},
}
