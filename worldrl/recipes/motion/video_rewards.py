"""Rewards of videos by name: each is opened in its folder, and all are scored together."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from worldrl.core.interfaces import VideoReward
from worldrl.registry import VIDEO_REWARDS
from worldrl.rewards.motion.terms import ALL, RewardTerms, chosen_terms, weights_of


class RewardChoice(Protocol):
    """The settings that name rewards."""

    rewards: list[str]
    weights: list[float]
    folders: dict[str, str]


def open_rewards(settings: RewardChoice, device: torch.device) -> tuple[RewardTerms, list[float]]:
    """Open every reward in its folder (ArtefactError, SettingError); return them together, and each term's weight."""
    parts, weights = [], list[float]()
    for name, terms in chosen_terms(settings.rewards, settings.weights).items():
        part = open_reward(name, terms, settings.folders, device)
        parts.append(part)
        weights += weights_of(part, terms)
    return RewardTerms(parts), weights


def open_reward(name: str, terms: Iterable[str], folders: Mapping[str, str], device: torch.device) -> VideoReward:
    """Open one registered reward in its folder, with the terms wanted; raises as :func:`open_rewards`."""
    return VIDEO_REWARDS.get(name)(folders.get(name, ""), [term for term in terms if term != ALL], device)
