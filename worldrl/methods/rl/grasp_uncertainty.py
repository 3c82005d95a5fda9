"""The uncertainty of inverse dynamics of the grasp in imagined rollouts: does the hand close where the object was?

It measures a rollout by the image at which it begins and by its commands, never by imagined frames. All of the uncertainty
lies in the chunk of the last closing before the imagined success, or in the last one where a closing is missing; its
bound is what a given share of real successes stays below.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``L`` control steps per chunk, ``F`` frames per chunk, ``A`` numbers of a
command.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.rewards.grasp import Closings, GraspDynamics

if TYPE_CHECKING:
    from worldrl.rewards.success import SuccessRule
    from worldrl.rollout.imagined.rollouts import ImaginedRollouts


@dataclass(frozen=True)
class GraspCheck:
    """Trained inverse dynamics of the grasp."""

    grasp: GraspDynamics  # reads where the hand must close.
    embodiment: AnyEmbodiment  # integrates actions into commands.
    bound: float  # normalised error that real successes stay below.
    rule: "SuccessRule"  # of imagined success.

    def normalised_error(self, rollouts: "ImaginedRollouts") -> Tensor:
        """Normalised error of the closings, in the chunk it is about ``[T, B]``; SettingError: rollouts lack actions."""
        from worldrl.rollout.trust.shown_grasp import closings, commands_from

        if rollouts.action is None or rollouts.probability is None:
            raise SettingError(
                "grasp trust: these rollouts were kept without their actions or their probabilities; imagine them again"
            )
        chunk_length = rollouts.action.shape[2]
        action = rollouts.action.transpose(0, 1).flatten(1, 2)  # [B, T L, A]
        command = commands_from(self.embodiment, rollouts.command[0], action)
        until, claimed = self._until(rollouts, rollouts.probability, chunk_length), rollouts.success.numpy()
        step, normalised_error = closings(self.grasp, rollouts.image[0], rollouts.instruction, command, until, claimed)
        about = (np.where(step >= 0, step, until) - 1) // chunk_length
        found, rows = torch.zeros(rollouts.valid.shape), np.flatnonzero(normalised_error > 0)
        found[torch.from_numpy(about[rows]), torch.from_numpy(rows)] = torch.from_numpy(normalised_error[rows])
        return found

    def _until(self, rollouts: "ImaginedRollouts", probability: Tensor, chunk_length: int) -> NDArray[np.int64]:
        """Control steps up to the imagined success, or to the end where there is none, ``[B]``."""
        from worldrl.rewards.success import success_step
        from worldrl.rollout.trust.shown_grasp import counted_steps

        kept = probability * rollouts.valid[..., None]
        step = success_step(kept.transpose(0, 1).flatten(1), self.rule, chunk_length // probability.shape[2])
        won = np.where(rollouts.success.numpy(), step, -1)
        return counted_steps(won, (rollouts.valid.sum(dim=0) * chunk_length).numpy())


def real_grasp_bound(grasp: GraspDynamics, kept: Closings, share: float) -> float:
    """Normalised error below which ``share`` of the closings in ``kept`` lie: real ones that it has not learned from."""
    error = (kept.commanded - grasp.read(kept.frame, kept.instruction)) / grasp.deviation.cpu()
    return float(np.quantile(error.square().mean(dim=1).numpy(), share))
