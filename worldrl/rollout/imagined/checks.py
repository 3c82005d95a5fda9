"""Checks of what users give to an imagined environment, before anything is changed.

Shapes legend: ``B`` rows, ``K`` memory frames, ``M`` control steps of these, ``Y X`` pixels, ``A`` numbers of a
command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import WorldModel
from worldrl.core.observation import COMMAND, IMAGE, STATE, images_among
from worldrl.core.types import ResetRecord
from worldrl.rollout.spaces import whole


def share(name: str, value: object) -> float:
    """Return ``value`` if it is a finite number in [0, 1]; else raise SettingError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise SettingError(f"{name}: must be a number from 0 to 1, got {value!r}; give {name}=0")
    return float(value)


def horizons(value: object, tasks: Sequence[str]) -> int | dict[str, int]:
    """Return control steps of an episode, one number or one per task; else raise SettingError."""
    if not isinstance(value, Mapping):
        return whole("horizon", value, 1)
    if missing := sorted(set(tasks) - set(value)):
        raise SettingError(f"horizon has no entry for {', '.join(missing)}; give one per task of the store")
    return {task: whole(f"horizon[{task!r}]", steps, 1) for task, steps in value.items()}


def check_records(
    records: object, count: int, *, world_model: WorldModel, space: Dict, tasks: Mapping[str, int] | None
) -> list[ResetRecord]:
    """Return the ``count`` records if rollouts may start there.

    ``space`` is that of one row's observation; ``tasks`` are those with a horizon, None where all have the same. Raises
    SettingError (another number of records, or a field of another type, dtype, shape or range).
    """
    if not isinstance(records, list | tuple):
        raise SettingError(f"records: must be a list of ResetRecord, got {type(records).__name__}")
    if len(records) != count:
        raise SettingError(f"reset needs one record per reset row: {count}, got {len(records)}")
    for number, record in enumerate(records):
        where = f"records[{number}]"
        if not isinstance(record, ResetRecord):
            raise SettingError(f"{where}: must be a ResetRecord, got {type(record).__name__}")
        _check_record(where, record, world_model, space)
        if tasks is not None and record.task not in tasks:
            raise SettingError(f"{where}.task: {record.task!r} has no horizon{nearest(record.task, tasks)}")
    return list(records)


def _check_record(where: str, record: ResetRecord, world_model: WorldModel, space: Dict) -> None:
    image, command = _box(space, IMAGE), _box(space, COMMAND)
    sheet = (len(images_among(world_model.more)) * image.shape[0], *image.shape[1:])
    for name in ("task", "source"):
        if not isinstance(value := getattr(record, name), str):
            raise SettingError(f"{where}.{name}: must be text, got {type(value).__name__}")
    if record.instruction not in space["instruction"]:
        raise SettingError(
            f"{where}.instruction: must be text of {space['instruction']}, got {record.instruction!r:.80}"
        )
    whole(f"{where}.step", record.step, 0)
    size, frames = world_model.embodiment.actions.size, world_model.memory_frames
    optional: dict[str, tuple[int, ...]] = {
        "reference_command": (size,),
        "memory_action": (frames * world_model.frame_stride, size),
        "memory_command": (frames, size),
    }
    _array(f"{where}.reference", record.reference, sheet, np.uint8)
    _array(f"{where}.memory", record.memory, (frames, *sheet), np.uint8)
    if STATE in world_model.more:
        measured = _box(space, STATE).shape
        _array(f"{where}.state", record.state, measured, np.float32)
        optional["memory_state"] = (frames, *measured)
    _command(f"{where}.command", record.command, command)
    for name, shape in optional.items():
        if (value := getattr(record, name)) is not None:
            _array(f"{where}.{name}", value, shape, np.float32)


def _box(space: Dict, name: str) -> Box:
    box = space[name]
    if not isinstance(box, Box):
        raise TypeError(f"{name} is observed as {box}")
    return box


def _command(where: str, value: object, box: Box) -> None:
    command = _array(where, value, box.shape, np.float32)
    if outside := np.flatnonzero((command < box.low) | (command > box.high)).tolist():
        at = outside[0]
        raise SettingError(
            f"{where}[{at}]: must be in [{box.low[at]:g}, {box.high[at]:g}], the robot's range, got {command[at]:g}"
        )


def _array(where: str, value: object, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        raise SettingError(f"{where}: must be a {np.dtype(dtype)} array of shape {shape}, got {got}")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SettingError(f"{where}: must be finite, got {value.ravel()[~np.isfinite(value).ravel()][0]}")
    return value


def check_state(state: object) -> dict[str, Any]:
    """Return the parts of an imagined environment's state; SettingError where one is missing or unknown."""
    return _parts("state", state, ("seed", "counters", "records", "recent", "world"))


def stored_records(items: object) -> list[ResetRecord]:
    """Rebuild records from the fields of ``get_state``; SettingError for other fields."""
    if not isinstance(items, list | tuple):
        raise SettingError(f"state['records']: must be a list, got {type(items).__name__}")
    names = [field.name for field in fields(ResetRecord)]
    return [ResetRecord(**_parts(f"state['records'][{at}]", item, names)) for at, item in enumerate(items)]


def check_counters(given: object, now: Mapping[str, NDArray[Any]], chunk_length: int) -> dict[str, NDArray[Any]]:
    """Return copies of a state's counters, in the shapes and dtypes of ``now``, the environment's own.

    Raises SettingError (a counter is missing, unknown, negative, or of another shape or dtype).
    """
    parts = _parts("state['counters']", given, tuple(now))
    for name, own in now.items():
        where = f"state['counters'][{name!r}]"
        value = _array(where, parts[name], own.shape, own.dtype)
        if value.dtype.kind == "i" and (value < 0).any():
            raise SettingError(f"{where}: must be at least 0, got {value.min()}")
    if (parts["phase"] >= chunk_length).any():
        raise SettingError(f"state['counters']['phase']: must be below {chunk_length}, got {parts['phase'].max()}")
    return {name: parts[name].copy() for name in now}


def check_tensors(part: str, given: object, fresh: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the tensors of a state's ``part``, in the names and shapes of ``fresh``, a new start's.

    Raises SettingError (a tensor is missing, unknown, of another shape or kind, or not finite).
    """
    parts = _parts(f"state['{part}']", given, tuple(fresh))
    for name, own in fresh.items():
        value, where = parts[name], f"state['{part}'][{name!r}]"
        if not isinstance(value, torch.Tensor) or value.shape != own.shape:
            got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise SettingError(f"{where}: must be a tensor of shape {tuple(own.shape)}, got {got}")
        if value.dtype != own.dtype and not (value.dtype.is_floating_point and own.dtype.is_floating_point):
            raise SettingError(f"{where}: must be {own.dtype}, got {value.dtype}")
        if value.dtype.is_floating_point and not bool(torch.isfinite(value).all()):
            raise SettingError(f"{where}: must be finite; take it from get_state")
    return {name: parts[name].clone() for name in fresh}


def _parts(where: str, given: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SettingError(f"{where}: must be a dictionary from get_state, got {type(given).__name__}")
    if unknown := [name for name in given if name not in names]:
        raise SettingError(f"{where}: unknown key {unknown[0]!r}{nearest(str(unknown[0]), names)}")
    if missing := [name for name in names if name not in given]:
        raise SettingError(f"{where}: lacks {', '.join(map(repr, missing))}; take it from get_state")
    return dict(given)
