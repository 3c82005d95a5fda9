"""The record of offline reinforcement learning: rows of (obs, action, reward, next obs), each with its two endings.

``terminated`` ends the return (no bootstrap), ``truncated`` only the recording. The next observation is the true
successor, also across a time limit. Shapes: ``B`` rows, ``S`` observation, ``A`` action.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, cast

import torch
from torch import Tensor


class Columns:
    """A dataclass of tensors with the same rows."""

    def select(self, index: Tensor | slice) -> Self:
        """Keep the rows of ``index`` (int64 positions, a bool mask or a slice), in that order."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(cast(Any, self))))

    def to(self, device: torch.device | str) -> Self:
        """Move every column."""
        return type(self)(*(getattr(self, field.name).to(device) for field in fields(cast(Any, self))))


@dataclass(frozen=True)
class Transitions(Columns):
    """Rows of experience, recorded or imagined."""

    obs: Tensor  # float32 `[B, S]`
    action: Tensor  # float32 `[B, A]` in [-1, 1]
    reward: Tensor  # float32 `[B]`
    next_obs: Tensor  # float32 `[B, S]`
    terminated: Tensor  # bool `[B]`, the task ended here: nothing follows
    truncated: Tensor  # bool `[B]`, a limit ended the recording or the rollout here: more would have followed

    def __len__(self) -> int:
        """Return the number of rows ``B``."""
        return int(self.obs.shape[0])


def concat(parts: Sequence[Transitions]) -> Transitions:
    """Stack rows of several records, in order."""
    return Transitions(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Transitions)))


@dataclass(frozen=True)
class Outcome:
    """What one step in a world brought, for each of its rows."""

    obs: Tensor  # float32 `[B, S]`, the observation arrived at
    reward: Tensor  # float32 `[B]`, unpenalised
    terminated: Tensor  # bool `[B]`
    # Float32 `[B]`, how little the world knows of this step, in the world's own documented unit; zero where it knows
    # all (the true simulator).
    uncertainty: Tensor
