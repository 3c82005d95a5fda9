"""Rewards of the motion in a video: an inverse dynamics model decodes the joints, and functions score them.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` joints, ``K`` terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.motion.basis import MotionBasis, MotionReward, check_frame_time, check_terms
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics, read_once
from worldrl.rewards.motion.published import PUBLISHED_EXECUTABILITY, check_published, published_executability


@dataclass(frozen=True)
class DecodedReward:
    """Functions of decoded joints as a :class:`~worldrl.core.interfaces.VideoReward`; a video is decoded once for all."""

    decoder: InverseDynamics
    terms: Mapping[str, MotionReward]  # name to function.
    basis: MotionBasis  # joint limits for every function, and the time between frames of its measurement.

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return tuple(self.terms)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """Terms ``[N, K]`` of the motion from the recorded first frame on; SettingError: other time steps."""
        dt, limits = self.basis.dt, self.basis.limits
        check_frame_time(self.basis, videos.frame_s)
        joints = read_once(self.decoder, videos)
        return torch.stack([term(joints, dt, limits) for term in self.terms.values()], dim=1)


def idm_reward(folder: str, terms: Sequence[str], device: torch.device) -> DecodedReward:
    """Make the reward ``idm`` from an inverse dynamics of ``worldrl train-idm``; no terms select all fitted ones.

    Equation: R = R_max (1 + P / P0)^-1/2, P the penalty of decoded motion
    Paper: EVA (2603.17808)

    Raises ArtefactError: no inverse dynamics in the folder; SettingError: no folder, no positions, an unknown term,
    or published constants for another robot.
    """
    if not folder:
        raise SettingError("folders.idm: this reward needs an inverse dynamics; make one with worldrl train-idm")
    idm = InverseDynamics.load(Path(folder), device)
    if idm.basis is None:
        raise SettingError(
            f"folders.idm: {folder} reads no positions, so it cannot measure motion; train it on positions"
        )
    fitted = idm.basis.rewards
    known = {**fitted, PUBLISHED_EXECUTABILITY: published_executability}
    check_terms(terms, known)
    if PUBLISHED_EXECUTABILITY in terms:
        check_published(idm.columns)
    return DecodedReward(idm, {name: known[name] for name in (terms or fitted)}, idm.basis)
