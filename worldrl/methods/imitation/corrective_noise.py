"""Corrective noise: displaced commands, with chunks that return from there to the recorded path.

A clone of few demonstrations has not seen how an expert comes back: it stops beside the waypoint, and grasps there. So
training displaces the command by noise ``n``, and the chunk makes up for it before the gripper changes::

    command' = command - n m / L           way' = way + n m / L
    chunk'[l] = chunk[l] + n / (L u)       for l < m

``u`` is how far an action of 1 moves the command, and ``m`` how many of the chunk's ``L`` actions come before a gripper
changes. After CCIL (Ke et al. 2023, "CCIL: Continuity-based Data Augmentation for Corrective Imitation Learning",
2310.12972), which learns the dynamics. Those of a command are linear, and read from the demonstrations.

Shapes legend: ``M`` samples, ``B`` rows, ``L`` chunk, ``A`` numbers of an action and of a command.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.policies.samples import Samples
from worldrl.policies.token.waypoint import arm_alone, closing

LINEAR = 0.9  # least share of a command's changes that the actions explain, for the chunk to be corrected


def command_unit(samples: Samples, actions: ActionSpec) -> Tensor:
    """How far an action of 1 moves each number of the command, float32 ``[A]`` (least squares over consecutive samples).

    0 for a target, and for a number whose changes the actions do not explain. SettingError: the samples are torn.
    """
    if samples.first is None:
        raise SettingError("samples: joined or selected ones do not follow each other; take those of make_samples")
    follows = samples.first[1:] == samples.first[:-1]
    change = (samples.command[1:] - samples.command[:-1])[follows].double()
    action = samples.chunk[:-1, 0][follows].double()
    unit = (change * action).sum(dim=0) / action.square().sum(dim=0).clamp_min(1e-12)
    left = (change - unit * action).square().sum(dim=0)
    explained = left <= (1 - LINEAR) * change.square().sum(dim=0)
    usable = explained & (unit > 0) & ~torch.tensor(actions.targets)
    return torch.where(usable, unit, 0.0).float()


def steps_before_change(samples: Samples, actions: ActionSpec) -> Tensor:
    """How many actions of each chunk come before a gripper changes, int64 ``[B]``: ``L`` where none does."""
    length = samples.chunk.shape[1]
    now = closing(samples.command, actions) >= 0  # [B, G]
    then = closing(samples.chunk, actions) >= 0  # [B, L, G]
    changed = (then != now[:, None]).any(dim=2)
    return torch.where(changed.any(dim=1), changed.int().argmax(dim=1), length)


@dataclass(frozen=True)
class CorrectiveNoise:
    """What the noise of one robot's commands makes of its chunks."""

    actions: ActionSpec
    unit: Tensor  # float32 ``[A]``, see :func:`command_unit`.
    deviation: Tensor  # float32 ``[A]``, standard deviation of the commands.

    def __call__(self, samples: Samples, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the way's displacement and the chunks, ``[B, A]`` and ``[B, L, A]``, for ``noise`` ``[B, A]``.

        Noise is in standard deviations of the commands. A target is reached from anywhere: its noise is whole, and
        its chunk as recorded. Grippers have no noise.
        """
        length, steps = samples.chunk.shape[1], steps_before_change(samples, self.actions)
        noise = arm_alone(noise, self.actions)
        correction = noise * self.deviation / (length * self.unit.clamp_min(1e-9))  # [B, A]
        before = torch.arange(length)[None, :, None] < steps[:, None, None]
        chunk = samples.chunk + before * torch.where(self.unit > 0, correction, 0.0)[:, None]
        displaced = torch.where(self.unit > 0, noise * steps[:, None] / length, 0.0)
        return torch.where(torch.tensor(self.actions.targets), noise, displaced), chunk
