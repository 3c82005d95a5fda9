"""Normalisation statistics of a policy: the actions' quantiles and the commanded poses' mean and deviation.

They are buffers of the policy and travel in its weights file: a policy without its statistics acts on wrong scales
and fails silently, so their absence is an error. With them goes what the numbers are (:class:`ActionSpec`), in the
policy's configuration.

Shapes legend: ``A`` numbers of an action and of a command.
"""

from __future__ import annotations

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

LEAST_DEVIATION = 1e-2
"""Lower bound of a command's deviation (m or rad): a pose that hardly moves is not blown up."""


def action_range(action: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of each dimension's range, ``[A]`` each: the 1 % and the 99 % quantile of actions ``[N, A]``.

    A dimension that moves so rarely that both quantiles agree (a gripper that closes in one step of two hundred) has its
    minimum and maximum instead, or its only information would be lost; one that never moves has a range of width 0.
    """
    exact = action.astype(np.float64)
    low, high = np.quantile(exact, [0.01, 0.99], axis=0)
    rare = high <= low
    return np.where(rare, exact.min(0), low), np.where(rare, exact.max(0), high)


@dataclass(frozen=True)
class PolicyStatistics:
    """What a :class:`~worldrl.policies.token.policy.TokenPolicy` needs to know of its data.

    Attributes:
        action_low: float32 ``[A]``, lower end of the actions' range (see :func:`action_range`).
        action_high: float32 ``[A]``, upper end.
        command_mean: float32 ``[A]``.
        command_std: float32 ``[A]``, at least 0.01.
        actions: what the numbers are.
    """

    action_low: Tensor
    action_high: Tensor
    command_mean: Tensor
    command_std: Tensor
    actions: ActionSpec = TOOL_ACTIONS

    def __post_init__(self) -> None:
        """Check shapes and order."""
        size = self.actions.size
        for name in _TENSORS:
            tensor = getattr(self, name)
            if tuple(tensor.shape) != (size,) or not torch.isfinite(tensor).all():
                raise SettingError(f"statistics.{name}: must be {size} finite numbers, got {tensor.tolist()}")
        if (self.action_low > self.action_high).any() or (self.command_std <= 0).any():
            raise SettingError("statistics: action_low must not exceed action_high, and command_std must be positive")

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> PolicyStatistics:
        """Compute the statistics of demonstrations.

        Args:
            episodes: at least one, with at least one action, of one robot.

        Raises:
            SettingError: there is no action.
            ArtefactError: an episode is of another robot.
        """
        if not any(len(episode) for episode in episodes):
            raise SettingError(f"episodes: need at least one action, got {len(episodes)} episodes without any")
        actions = one_robot(episodes)
        low, high = action_range(np.concatenate([episode.action for episode in episodes]))
        command = np.concatenate([episode.command for episode in episodes])
        std = np.maximum(command.std(axis=0), LEAST_DEVIATION)
        numbers = (low, high, command.mean(axis=0), std)
        return cls(*(torch.tensor(v, dtype=torch.float32) for v in numbers), actions=actions)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], actions: ActionSpec, folder: Path) -> PolicyStatistics:
        """Pick the statistics out of a weights file.

        Args:
            tensors: every tensor of the file.
            actions: what the numbers are.
            folder: where it was read, for the error.

        Raises:
            ArtefactError: one is missing.
        """
        missing = [name for name in _TENSORS if name not in tensors]
        if missing:
            raise ArtefactError(
                f"policy {folder}: normalisation statistics {', '.join(missing)} are missing, so its actions would "
                "have the wrong scale; train the policy again or copy the complete folder"
            )
        return cls(**{name: tensors[name] for name in _TENSORS}, actions=actions)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies by name."""
        return {name: getattr(self, name).clone() for name in _TENSORS}


_TENSORS = ("action_low", "action_high", "command_mean", "command_std")


def one_robot(episodes: Sequence[Episode]) -> ActionSpec:
    """Return what the numbers of all episodes' actions are.

    Raises:
        ArtefactError: they differ; a policy is of one robot.
    """
    actions = episodes[0].actions
    for number, episode in enumerate(episodes):
        require_robot(episode, number, actions)
    return actions
