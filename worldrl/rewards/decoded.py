"""Rewards of the motion that a video shows: an inverse dynamics model decodes its joints, and functions judge these.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` joints, ``K`` terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from worldrl.core.types import ImaginedVideos

MotionReward = Callable[[Tensor, float, Any], Tensor]
"""Maps joint trajectories ``[N, T, D]`` (rad), seconds between frames, and limits to ``[N]``; more is better."""


class DecodedJoints(Protocol):
    """What an inverse dynamics model sees: mean and standard deviation ``[N, T, D]`` of the joints (rad)."""

    @property
    def mean(self) -> Tensor:
        """Most likely joints."""
        ...

    @property
    def std(self) -> Tensor:
        """How unsure each of them is."""
        ...


class JointDecoder(Protocol):
    """A frozen inverse dynamics model."""

    def decode(self, frames: Tensor) -> DecodedJoints:
        """Decode uint8 frames ``[N, T, Y, X, 3]``."""
        ...


@dataclass(frozen=True)
class DecodedReward:
    """Functions of decoded joints as a :class:`~worldrl.core.interfaces.VideoReward`; a video is decoded once for all.

    Attributes:
        decoder: the inverse dynamics model.
        terms: name to function.
        limits: the robot's, handed to every function.
    """

    decoder: JointDecoder
    terms: Mapping[str, MotionReward]
    limits: Any

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return tuple(self.terms)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """Judge the motion from the recorded first frame on: ``[N, K]``."""
        joints = self.decoder.decode(videos.frames).mean.float().cpu()
        return torch.stack([term(joints, videos.frame_s, self.limits) for term in self.terms.values()], dim=1)
