"""Rewards of the motion that a video shows: an inverse dynamics model decodes its joints, and functions judge these.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` joints, ``K`` terms.
"""

from __future__ import annotations

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
    """Functions of decoded joints as a :class:`~worldrl.core.interfaces.VideoReward`; a video is decoded once for all, other rewards of the same decoder among them.

    Attributes:
        decoder: the inverse dynamics model.
        terms: name to function.
        basis: limits that every function is handed, and the time between frames that all was measured at.
    """

    decoder: InverseDynamics
    terms: Mapping[str, MotionReward]
    basis: MotionBasis

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return tuple(self.terms)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """Judge the motion from the recorded first frame on: ``[N, K]``.

        Raises:
            SettingError: the videos' frames are not as far apart as those the inverse dynamics was measured on.
        """
        dt, limits = self.basis.dt, self.basis.limits
        check_frame_time(self.basis, videos.frame_s)
        joints = read_once(self.decoder, videos)
        return torch.stack([term(joints, dt, limits) for term in self.terms.values()], dim=1)


def idm_reward(folder: str, terms: Sequence[str], device: torch.device) -> DecodedReward:
    """Make the reward ``idm``: an inverse dynamics of ``worldrl train-idm``, with the constants measured beside it.

    Equation: R = R_max (1 + P / P0)^-1/2, P the penalty of decoded motion
    Paper: EVA (2603.17808)

    Args:
        folder: its artefact.
        terms: names of :attr:`~worldrl.rewards.motion.basis.MotionBasis.rewards`, or ``published_executability``; none takes all of the former.
        device: where it decodes.

    Raises:
        ArtefactError: there is no inverse dynamics in the folder.
        SettingError: no folder is given, it reads no positions, a term is unknown, or the published constants are not for its robot.
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
