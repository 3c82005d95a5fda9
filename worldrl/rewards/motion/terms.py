"""Several rewards of the same videos side by side; each term stays a separate number until they are mixed.

Shapes legend: ``N`` videos, ``K`` terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import VideoReward
from worldrl.core.types import ImaginedVideos

ALL = ""  # stands for every term of a reward


@dataclass(frozen=True)
class RewardTerms:
    """Rewards as one :class:`~worldrl.core.interfaces.VideoReward` with the terms of all; no name occurs twice."""

    parts: Sequence[VideoReward]

    def __post_init__(self) -> None:
        names = self.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SettingError(f"rewards: two of them have a term {twice[0]!r}; name the terms wanted, REWARD.TERM")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ``K`` terms, reward by reward."""
        return tuple(name for part in self.parts for name in part.names)

    def score(self, videos: ImaginedVideos) -> Tensor:
        """All terms ``[N, K]``."""
        return torch.cat([part.score(videos).float().cpu() for part in self.parts], dim=1)


def chosen_terms(rewards: Sequence[str], weights: Sequence[float]) -> dict[str, dict[str, float]]:
    """Parse ``rewards=[NAME,NAME.TERM] weights=[...]``; no weights weigh all alike.

    Returns for each reward its terms with their weights; :data:`ALL` stands for every term, each of that weight.
    Raises SettingError: no reward, a repeated one, or weights that are no mixture of them.
    """
    if not rewards:
        raise SettingError("rewards: name at least one, for example rewards=[idm.moving_executability]")
    if weights and len(weights) != len(rewards):
        raise SettingError(f"weights: {len(rewards)} rewards need as many weights, got {len(weights)}")
    if not all(0 <= weight < float("inf") for weight in weights) or (weights and not any(weights)):
        raise SettingError(
            f"weights: none may be below zero, and one of them above zero is needed, got {list(weights)}"
        )
    found: dict[str, dict[str, float]] = {}
    for entry, weight in zip(rewards, weights or [1.0] * len(rewards), strict=True):
        name, _, term = entry.partition(".")
        terms = found.setdefault(name, {})
        if terms and (term in terms or ALL in (term, *terms)):
            raise SettingError(f"rewards: {entry!r} is named twice, by itself or with all of {name!r}; keep one")
        terms[term] = weight
    return found


def weights_of(reward: VideoReward, terms: Mapping[str, float]) -> list[float]:
    """Weight of each of a reward's terms, in its order; SettingError: one that ``terms`` does not name."""
    if ALL not in terms and (unasked := sorted(set(reward.names) - set(terms))):
        raise SettingError(f"rewards: asked for {', '.join(terms)}, a reward returned {unasked[0]!r} too; repair it")
    return [terms.get(name, terms.get(ALL, 0.0)) for name in reward.names]
