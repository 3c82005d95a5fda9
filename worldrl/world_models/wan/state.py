"""The rows of a Wan world model between chunks, and how they begin.

Shapes legend: as in ``wan``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.types import ResetRecord
from worldrl.world_models.video.following import RowState
from worldrl.world_models.wan.config import WanConfig, WanDynamicsConfig


@dataclass(frozen=True)
class WanState(RowState):
    """Rows of a Wan world model; ``reference`` uint8 ``[B, V Y, X, 3]`` is each row's first frame."""

    memory: Tensor  # uint8 ``[B, K, V Y, X, 3]``, the newest frames.
    null_action: Tensor  # float32 ``[B, A]``, the null action at the reference.
    memory_action: Tensor  # float32 ``[B, M, A]``, the actions that led to the memory.
    command: Tensor  # the robot's last command ``[B, A]``.
    instruction: Tensor  # embedded instructions ``[B, d]``.
    belief: Tensor  # of the outcome ensemble ``[B, J b]``, nothing where there is none.
    measured: Tensor | None = None  # newest measured numbers ``[B, S]``; None where the model does not predict them.


def clip_action(null_action: Tensor, memory_action: Tensor, action: Tensor) -> Tensor:
    """Lay out a clip's actions ``[B, 1 + M + L, A]``: the reference's null action, the memory's, the future's."""
    return torch.cat([null_action[:, None], memory_action, action], dim=1)


def context_frames(reference: Tensor, memory: Tensor, config: WanDynamicsConfig) -> Tensor:
    """Lay out a clip's given images ``[B, 1 + K, V Y, X, 3]``: the reference, then the memory.

    Without the reference the oldest frame of the memory begins the clip: the autoencoder wants one frame alone.
    """
    return torch.cat([reference[:, None] if config.reference else memory[:, :1], memory], dim=1)


def start_arrays(records: Sequence[ResetRecord], config: WanConfig, actions: ActionSpec) -> dict[str, NDArray[Any]]:
    """Stack what a state keeps of its records, by attribute; SettingError: one has another size."""
    return {
        "reference": np.stack([record.reference for record in records]),
        "memory": np.stack([_memory(record, config) for record in records]),
        "null_action": np.stack([actions.hold(record.first_command) for record in records]),
        "memory_action": np.stack([_memory_action(record, config, actions) for record in records]),
        "command": np.stack([record.command for record in records]),
    }


def _memory(record: ResetRecord, config: WanConfig) -> NDArray[np.uint8]:
    sheet, frames = config.sheet, config.dynamics.memory_frames
    if record.memory.shape != (frames, *sheet) or record.reference.shape != sheet:
        raise SettingError(
            f"{record.source}: needs a reference and {frames} memory images of {sheet[0]} by {sheet[1]}, got "
            f"{list(record.reference.shape)} and {list(record.memory.shape)}; record them at the model's image_size, of its cameras"
        )
    return record.memory


def _memory_action(record: ResetRecord, config: WanConfig, actions: ActionSpec) -> NDArray[np.float32]:
    steps, action = config.dynamics.memory_actions, record.memory_action
    if action is None:
        return np.tile(actions.hold(record.first_command), (steps, 1))
    if action.shape != (steps, actions.size):
        raise SettingError(
            f"{record.source}: memory_action must be [{steps}, {actions.size}], got {list(action.shape)}"
        )
    return action.astype(np.float32)
