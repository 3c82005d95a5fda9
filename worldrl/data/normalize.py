"""Action statistics: data that travels with a policy, never recomputed silently.

Each dimension maps its 1 %..99 % range to [-1, 1]. Two degenerate cases are explicit:

- a dimension that never moves (minimum = maximum) maps to 0, and back to its constant;
- a dimension that moves so rarely that both quantiles agree (a gripper that closes in one step of two hundred)
  uses its minimum and maximum instead, or its only information would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.types import Episode


@dataclass(frozen=True)
class ActionStatistics:
    """Per-dimension statistics of actions.

    Attributes:
        q01: lower end of each dimension's range: its 1 % quantile, or its minimum (see the module).
        q99: upper end; equal to ``q01`` exactly where the dimension never moves.
        mean: of each dimension.
        std: population deviation of each dimension.
    """

    q01: tuple[float, ...]
    q99: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check lengths, finiteness and order."""
        values = np.array([self.q01, self.q99, self.mean, self.std], dtype=np.float64)
        if not np.isfinite(values).all():
            raise ArtefactError("action statistics are not finite; compute them again from a checked dataset")
        if (values[1] < values[0]).any():
            raise ArtefactError(f"action statistics: q99 {self.q99} lies below q01 {self.q01}; compute them again")

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> Self:
        """Compute them over all actions of all episodes, exactly.

        Raises:
            SettingError: there is no episode.
        """
        arrays = [episode.action for episode in episodes]
        if not arrays:
            raise SettingError("action statistics need at least one episode, received none")
        action = np.concatenate(arrays).astype(np.float64)
        q01, q99 = np.quantile(action, [0.01, 0.99], axis=0)
        rare = q99 <= q01
        q01, q99 = np.where(rare, action.min(0), q01), np.where(rare, action.max(0), q99)
        return cls(*(tuple(v.tolist()) for v in (q01, q99, action.mean(0), action.std(0))))

    def to_json(self) -> dict[str, list[float]]:
        """Return plain JSON values; floats survive the round trip exactly."""
        return {field.name: list(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Self:
        """Rebuild from :meth:`to_json`.

        Raises:
            ArtefactError: there are none, or a key is missing: a policy without its statistics is unusable.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in (data or {})]
        if data is None or missing:
            raise ArtefactError(
                f"action statistics are missing ({', '.join(missing)}); the artefact was saved without them: "
                "save it again with the statistics it was trained with"
            )
        return cls(*(tuple(float(value) for value in data[name]) for name in names))


def normalise(action: Tensor, statistics: ActionStatistics | None) -> Tensor:
    """Map actions to [-1, 1].

    Args:
        action: float ``[..., A]`` in the embodiment's units.
        statistics: of the training data.

    Returns:
        ``[..., A]``, clipped to [-1, 1]; 0 in dimensions that never moved.

    Raises:
        SettingError: no statistics, or of another action size.
    """
    low, high = _range(action, statistics)
    moves = high > low
    scaled = 2 * (action - low) / torch.where(moves, high - low, torch.ones_like(low)) - 1
    return torch.where(moves, scaled.clamp(-1, 1), torch.zeros_like(scaled))


def denormalise(action: Tensor, statistics: ActionStatistics | None) -> Tensor:
    """Map [-1, 1] back to the embodiment's units; dimensions that never moved return their constant.

    Args:
        action: float ``[..., A]``.
        statistics: of the training data.

    Returns:
        ``[..., A]``; the inverse of :func:`normalise` inside the range.

    Raises:
        SettingError: no statistics, or of another action size.
    """
    low, high = _range(action, statistics)
    return low + (action + 1) / 2 * (high - low)


def _range(action: Tensor, statistics: ActionStatistics | None) -> tuple[Tensor, Tensor]:
    if statistics is None:
        raise SettingError("actions cannot be normalised without statistics; load those saved with the policy")
    if action.shape[-1] != len(statistics.q01):
        raise SettingError(f"action has {action.shape[-1]} dimensions, its statistics {len(statistics.q01)}")
    return action.new_tensor(statistics.q01), action.new_tensor(statistics.q99)
