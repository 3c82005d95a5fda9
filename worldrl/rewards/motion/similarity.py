"""Rewards that compare commands with the motion that inverse dynamics decodes from a video.

They suit a world model conditioned on actions; ``rewards.motion.executability`` suits one that plans.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` coordinates, ``A`` numbers of a command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.motion.basis import check_frame_time, check_terms
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics, read_once

TERM = "action_similarity"
TEMPERATURE = 0.25  # temperature of the reward in ``align-world-model`` and of the acceptance probe in ``train-idm``


def action_similarity(decoded: Tensor, commanded: Tensor, deviation: Tensor, temperature: float = 1.0) -> Tensor:
    """RLinf's reward ``[N]``: mean_t exp(-mean_d (z(decoded_t) - z(commanded_t))² / temperature), of ``[N, T, D]``.

    z divides by ``deviation`` ``[D]`` of the training targets. RLinf's temperature is 1, or 2 for 14 joints.
    """
    error = ((decoded - commanded) / deviation).square().mean(dim=-1)
    return (-error / temperature).exp().mean(dim=1)


def normalised_error(decoded: Tensor, deviation: Tensor, commanded: Tensor) -> Tensor:
    """Mean square error over the predicted ``deviation``, ``[N, T]`` from ``[N, T, D]`` each; 1 on correct frames."""
    return ((decoded - commanded) / deviation).square().mean(dim=-1)


def commanded_columns(idm: InverseDynamics) -> tuple[list[int], list[int]]:
    """Places of commanded columns among the inverse dynamics' own, and in the command; SettingError: none."""
    found = [(place, column.index) for place, column in enumerate(idm.columns) if column.vector == "command"]
    if not found:
        labels = ", ".join(column.label for column in idm.columns)
        raise SettingError(f"idm: it reads {labels}, and nothing that is commanded; train it with target=[command]")
    own, theirs = zip(*found, strict=True)
    return list(own), list(theirs)


@dataclass(frozen=True)
class SimilarityReward:
    """:func:`action_similarity` as a :class:`~worldrl.core.interfaces.VideoReward` of videos conditioned on actions."""

    decoder: InverseDynamics
    names: tuple[str, ...] = (TERM,)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """Similarity ``[N, 1]`` of frames and commands; SettingError: no commands, or another frame time."""
        if videos.command is None:
            raise SettingError(
                f"reward: {TERM} compares videos with commands, and these were planned; give conditioning=actions"
            )
        check_frame_time(self.decoder.basis, videos.frame_s)
        own, theirs = commanded_columns(self.decoder)
        decoded = read_once(self.decoder, videos)[:, 1:, own]
        deviation = self.decoder.deviation.cpu()[own]
        return action_similarity(decoded, videos.command[:, 1:, theirs], deviation, TEMPERATURE)[:, None]


def similarity_reward(folder: str, terms: Sequence[str], device: torch.device) -> SimilarityReward:
    """Make the reward ``similarity``.

    Equation: r = mean_t exp(-mean_d (z(decoded) - z(commanded))² / 0.25)
    Paper: RLinf's action similarity

    Raises ArtefactError: no inverse dynamics; SettingError: no folder, no commanded column, or an unknown term.
    """
    if not folder:
        raise SettingError("folders.similarity: this reward needs an inverse dynamics; make one with worldrl train-idm")
    idm = InverseDynamics.load(Path(folder), device)
    commanded_columns(idm)
    check_terms(terms, (TERM,))
    return SimilarityReward(idm)
