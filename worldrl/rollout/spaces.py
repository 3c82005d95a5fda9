"""Spaces that all vector environments share, imagined or real, and checks of actions and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.embodiment import AnyEmbodiment, JointEmbodiment
from worldrl.core.errors import ActionError, SettingError, nearest
from worldrl.core.observation import STATE, images_among
from worldrl.core.types import ResetRecord

_CHARACTERS = "".join(chr(code) for code in range(32, 127))
_LONGEST = 256
_ROUNDING = 1 + 1e-5  # float32 rotations of the greatest angle are longer by a few roundings

Bounds = tuple[NDArray[np.float32], NDArray[np.float32]]


def command_bounds(robot: AnyEmbodiment, starts: NDArray[np.float32]) -> Bounds:
    """Least and greatest command float32 ``[A]``: the robot's, widened to the starts' commands ``[N, A]``."""
    if isinstance(robot, JointEmbodiment):
        low, high = robot.low, robot.high
    else:
        turn = [robot.max_rotation * _ROUNDING] * 3
        low, high = (*robot.workspace_low, *(-t for t in turn), -1.0), (*robot.workspace_high, *turn, 1.0)
    return (
        np.minimum(np.array(low, np.float32), starts.min(axis=0)),
        np.maximum(np.array(high, np.float32), starts.max(axis=0)),
    )


def given_spaces(low: Any, high: Any, instructions: Iterable[str]) -> dict[str, gymnasium.Space[Any]]:
    """Spaces of the command, float32 ``[A]`` within ``low`` and ``high``, and of the instruction.

    The instruction is printable ASCII text of up to 256 characters, or one of ``instructions``.
    """
    from worldrl_envs.instruction_space import InstructionSpace

    occurring = list(instructions)
    others = sorted(set("".join(occurring)) - set(_CHARACTERS))
    longest = max(map(len, occurring), default=0)
    return {
        "command": gymnasium.spaces.Box(low, high, dtype=np.float32),
        "instruction": InstructionSpace(max(_LONGEST, longest), charset=_CHARACTERS + "".join(others)),
    }


def observed_spaces(record: ResetRecord, more: Sequence[str]) -> dict[str, gymnasium.Space[Any]]:
    """Spaces of one row's images and, where it is in ``more``, of its measured state, in the sizes of a start state.

    Raises SettingError (the state is observed, and the start state has none).
    """
    names = images_among(more)
    rows, columns, channels = record.reference.shape
    shape = (rows // len(names), columns, channels)
    spaces: dict[str, gymnasium.Space[Any]] = {name: gymnasium.spaces.Box(0, 255, shape, np.uint8) for name in names}
    if STATE in more:
        if record.state is None:
            raise SettingError("start states: the world model predicts the measured state, and they have none")
        spaces[STATE] = gymnasium.spaces.Box(-np.inf, np.inf, record.state.shape, np.float32)
    return spaces


def set_spaces(env: VectorEnv, observation: Mapping[str, gymnasium.Space[Any]], actions: ActionSpec) -> None:
    """Set a vector environment's four spaces from one row's observation and actions."""
    env.single_observation_space = gymnasium.spaces.Dict(dict(observation))
    env.single_action_space = gymnasium.spaces.Box(*actions.bounds, dtype=np.float32)
    env.observation_space = batch_space(env.single_observation_space, env.num_envs)
    env.action_space = batch_space(env.single_action_space, env.num_envs)


def whole(name: str, value: object, low: int) -> int:
    """Return ``value`` if it is an integer of at least ``low``; else raise SettingError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or value < low:
        raise SettingError(f"{name}: must be an integer of at least {low}, got {value!r}; give {name}={low}")
    return int(value)


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the autoreset mode; SettingError for ``SameStep`` and unknown names."""
    valid = {known.value: known for known in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)}
    name = mode.value if isinstance(mode, AutoresetMode) else str(mode)
    if name not in valid:
        raise SettingError(f"autoreset_mode must be NextStep or Disabled, got {name!r}; give autoreset_mode='NextStep'")
    return valid[name]


def checked_options(options: object, names: Sequence[str]) -> dict[str, Any]:
    """Return a reset's options if each has one of these names; else raise SettingError."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise SettingError(f"reset options: must be a dictionary or None, got {type(options).__name__}")
    if unknown := [key for key in options if key not in names]:
        raise SettingError(
            f"unknown reset options {unknown}; valid: {', '.join(names)}{nearest(str(unknown[0]), names)}"
        )
    return dict(options)


def checked_rows(mask: object, rows: int, *, first: bool) -> NDArray[np.int64]:
    """Return the rows of a reset: bool ``[B]``, or None for all; the ``first`` reset must be of all rows.

    Raises SettingError (another shape or dtype, no row, or a first reset that leaves rows out).
    """
    if mask is None:
        return np.arange(rows)
    array = np.asarray(mask)
    if array.shape != (rows,) or array.dtype != np.bool_ or not array.any():
        raise SettingError(f"reset_mask must be bool of shape ({rows},) with a true entry, got {mask!r}")
    if first and not array.all():
        raise SettingError("the first reset must reset every row; reset_mask leaves some out")
    return np.flatnonzero(array)


def checked_seed(seed: object) -> int | None:
    """Return a reset's seed, an integer of at least 0 or None; else raise SettingError."""
    return None if seed is None else whole("seed", seed, 0)


def check_action(
    action: NDArray[Any], rows: tuple[int, ...], actions: ActionSpec = TOOL_ACTIONS
) -> NDArray[np.float32]:
    """Return ``action`` if it is a finite float array ``[*rows, A]`` in the robot's range; else raise ActionError."""
    action, shape, (low, high) = np.asarray(action), (*rows, actions.size), actions.bounds
    if action.shape != shape or action.dtype.kind != "f":
        raise ActionError(f"action must be a float array of shape {shape}, got {action.dtype} {action.shape}")
    bad = ~np.isfinite(action) | (action < low - 1e-6) | (action > high + 1e-6)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ActionError(
            f"action row {index[0]}, field {index[1:]} is {action[index]}; it must be finite and in "
            f"[{low[index[-1]]:g}, {high[index[-1]]:g}]; no state was changed"
        )
    return action.astype(np.float32)
