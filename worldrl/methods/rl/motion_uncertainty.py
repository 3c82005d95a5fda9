"""The uncertainty of inverse dynamics in imagined rollouts: do their frames show the commanded motion?

It reads the image before each chunk and the last one. A rollout is as uncertain as its worst frame, and the bound of
its error (``rewards.motion.similarity``) is what a given share of real episodes stays below.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``N`` frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.training import Restore, as_shown

if TYPE_CHECKING:
    from worldrl.rollout.imagined.rollouts import ImaginedRollouts


@dataclass(frozen=True)
class MotionCheck:
    """Trained inverse dynamics."""

    idm: InverseDynamics  # reads commanded columns of frames a chunk apart.
    bound: float  # normalised error that real episodes stay below.

    def normalised_error(self, rollouts: "ImaginedRollouts") -> Tensor:
        """Normalised error at each chunk's last frame ``[T, B]``, 0 once over; SettingError: rollouts without it."""
        from worldrl.rollout.trust.shown_motion import motion_error

        if rollouts.end is None:
            raise SettingError("motion trust: these rollouts were kept without their last frame; imagine them again")
        frames = torch.cat([rollouts.image, rollouts.end.image[None]]).transpose(0, 1)
        command = torch.cat([rollouts.command, rollouts.end.command[None]]).transpose(0, 1)
        found = motion_error(self.idm, frames, command)
        # The first frame is real; chunk t leads to frame t + 1, which counts where the chunk did.
        return found[:, 1:].T.masked_fill(~rollouts.valid, 0.0)


def real_bound(
    idm: InverseDynamics,
    episodes: Sequence[Episode],
    *,
    chunk_length: int,
    share: float,
    camera: str = "scene",
    restore: Restore | None = None,
) -> float:
    """Normalised error s₀ below which the worst frame of ``share`` of real episodes lies, read every ``chunk_length``-th frame.

    ``restore`` shows frames as the world model's codec does. Raises SettingError: no episode is as long as a chunk.
    """
    from worldrl.rollout.trust.shown_motion import check_spacing, motion_error

    check_spacing(idm, chunk_length)
    worst = []
    for episode in (episode for episode in episodes if len(episode) >= chunk_length):
        view = episode.frames[::chunk_length, episode.cameras.index(camera)]
        frames = torch.from_numpy(np.ascontiguousarray(view))
        command = torch.from_numpy(episode.command[::chunk_length].copy())
        shown = as_shown(frames, restore)
        worst.append(float(motion_error(idm, shown[None], command[None])[0, 1:].amax()))
    if not worst:
        raise SettingError(
            f"improvement.trust.idm: no held-out collected episode has {chunk_length} steps; collect longer episodes"
        )
    return float(np.quantile(worst, share))
