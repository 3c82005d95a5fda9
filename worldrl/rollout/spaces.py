"""Spaces that every vector environment here shares, imagined or real, and the check of what is stepped with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ActionError

_CHARACTERS = "".join(chr(code) for code in range(32, 127))


def told_spaces(actions: ActionSpec, bound: float) -> dict[str, gymnasium.Space[Any]]:
    """What a robot is told: the command it holds, each number within ``bound``, and a sentence of up to 256 characters."""
    return {
        "command": gymnasium.spaces.Box(-bound, bound, (actions.size,), np.float32),
        "instruction": gymnasium.spaces.Text(256, charset=_CHARACTERS),
    }


def give_spaces(env: VectorEnv, observation: Mapping[str, gymnasium.Space[Any]], actions: ActionSpec) -> None:
    """Set a vector environment's four spaces from what one row observes and does."""
    env.single_observation_space = gymnasium.spaces.Dict(dict(observation))
    env.single_action_space = gymnasium.spaces.Box(*actions.bounds, dtype=np.float32)
    env.observation_space = batch_space(env.single_observation_space, env.num_envs)
    env.action_space = batch_space(env.single_action_space, env.num_envs)


def check_action(
    action: NDArray[Any], rows: tuple[int, ...], actions: ActionSpec = TOOL_ACTIONS
) -> NDArray[np.float32]:
    """Return ``action`` if it is a finite floating array ``[*rows, A]`` within the robot's range; else raise ActionError."""
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
