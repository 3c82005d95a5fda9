"""Normalisation statistics of a policy: the actions' quantiles, and mean and deviation of the commanded poses.

They are buffers of the policy and stored in its weights file. A policy without its statistics acts on wrong scales
without any sign of it, so their absence is an error. The :class:`ActionSpec` is stored in the policy's configuration.

Shapes legend: ``A`` numbers of an action and of a command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.types import Episode
from worldrl.data.windows.frame_store import require_robot
from worldrl.policies.token.tokens import STILL

LEAST_STATE_DEVIATION = 1e-3
"""Lower bound of a measured number's deviation: a finger that holds differs by millimetres from one that does not."""
LEAST_DEVIATION = 1e-2
"""Lower bound of a command's deviation (m or rad): small motions are not scaled to unit deviation."""


def action_range(
    action: NDArray[np.float32], targets: Sequence[bool]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of each dimension's range, ``[A]`` each: the 1 % and the 99 % quantile of actions ``[N, A]``.

    Equal quantiles (a gripper that closes in one step of two hundred) would lose its only information: then minimum
    and maximum. Those of a change are as far from 0 on both sides: few demonstrations hold fast motions one way alone.
    """
    exact = action.astype(np.float64)
    low, high = np.quantile(exact, [0.01, 0.99], axis=0)
    rare = high <= low
    low, high = np.where(rare, exact.min(0), low), np.where(rare, exact.max(0), high)
    reach, moves = np.maximum(-low, high), (high - low >= STILL) & ~np.array(targets)
    return np.where(moves, -reach, low), np.where(moves, reach, high)


def command_deviation(episodes: Sequence[Episode]) -> NDArray[np.float32]:
    """Return the standard deviation of all commands, float32 ``[A]``, at least 0.01."""
    return np.maximum(np.concatenate([e.command for e in episodes]).std(axis=0), LEAST_DEVIATION).astype(np.float32)


@dataclass(frozen=True)
class PolicyStatistics:
    """Normalisation of a :class:`~worldrl.policies.token.policy.TokenPolicy`."""

    action_low: Tensor  # float32 ``[A]``, lower end of the actions' range (see :func:`action_range`).
    action_high: Tensor  # float32 ``[A]``, upper end.
    command_mean: Tensor  # float32 ``[A]``.
    command_std: Tensor  # float32 ``[A]``, at least 0.01.
    actions: ActionSpec = TOOL_ACTIONS
    # float32 ``[S]``, of the measured state; None for a policy that does not observe it.
    state_mean: Tensor | None = None
    state_std: Tensor | None = None  # float32 ``[S]``, at least 0.001.

    def __post_init__(self) -> None:
        size = self.actions.size
        for name in _TENSORS:
            tensor = getattr(self, name)
            if tuple(tensor.shape) != (size,) or not torch.isfinite(tensor).all():
                raise SettingError(f"statistics.{name}: must be {size} finite numbers, got {tensor.tolist()}")
        if (self.action_low > self.action_high).any() or (self.command_std <= 0).any():
            raise SettingError("statistics: action_low must not exceed action_high, and command_std must be positive")

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> "PolicyStatistics":
        """Compute the statistics of demonstrations of one robot; SettingError: they hold no action."""
        if not any(len(episode) for episode in episodes):
            raise SettingError(f"episodes: need at least one action, got {len(episodes)} episodes without any")
        actions = one_robot(episodes)
        low, high = action_range(np.concatenate([episode.action for episode in episodes]), actions.targets)
        command = np.concatenate([episode.command for episode in episodes])
        std = command_deviation(episodes)
        state = np.concatenate([episode.state for episode in episodes])
        state_std = np.maximum(state.std(axis=0), LEAST_STATE_DEVIATION)
        numbers = (low, high, command.mean(axis=0), std, state.mean(axis=0), state_std)
        *own, mean, deviation = (torch.tensor(v, dtype=torch.float32) for v in numbers)
        return cls(*own, actions=actions, state_mean=mean, state_std=deviation)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], actions: ActionSpec, folder: Path) -> "PolicyStatistics":
        """Select the statistics from the tensors of a weights file in ``folder``; ArtefactError: one is missing."""
        missing = [name for name in _TENSORS if name not in tensors]
        if missing:
            raise ArtefactError(
                f"policy {folder}: normalisation statistics {', '.join(missing)} are missing, so its actions would "
                "have the wrong scale; train the policy again or copy the complete folder"
            )
        given = {name: tensors[name] for name in (*_TENSORS, *_STATE) if name in tensors}
        return cls(**given, actions=actions)

    def tensors(self, *, state: bool = False) -> dict[str, Tensor]:
        """Copies by name, with those of the measured state where asked; SettingError: there are none of it."""
        if state and (self.state_mean is None or self.state_std is None):
            raise SettingError("statistics: none of the measured state; compute them from demonstrations that have it")
        return {name: getattr(self, name).clone() for name in (*_TENSORS, *(_STATE if state else ()))}


_STATE = ("state_mean", "state_std")
_TENSORS = ("action_low", "action_high", "command_mean", "command_std")


def one_robot(episodes: Sequence[Episode]) -> ActionSpec:
    """Return the action specification that all episodes share; ArtefactError: they differ."""
    actions = episodes[0].actions
    for number, episode in enumerate(episodes):
        require_robot(episode, number, actions)
    return actions
