"""Does the hand close where the object was? Inverse dynamics of the grasp reads where a rollout begins; the commands are known exactly.

A rollout that is imagined to succeed claims that the last closing before it took hold of the object. Where that closing was told
elsewhere than the picture at its beginning and the instruction ask for (``rewards.grasp``), reality disagrees. Where the hand was
open at the beginning, never closed, and recorded successes of the sentence all closed it, the claim is false for certain.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``A`` numbers of an action and of a command.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import AnyEmbodiment, integrate_commands
from worldrl.core.errors import SettingError
from worldrl.core.types import ResetRecord
from worldrl.rewards.grasp import GraspDynamics


def check_robot(grasp: GraspDynamics, actions: ActionSpec) -> None:
    """Refuse inverse dynamics of another robot.

    Raises:
        SettingError: it is.
    """
    if grasp.actions != actions:
        raise SettingError(
            f"grasp: it learned from a robot whose actions are {', '.join(grasp.actions.names)}, here they are "
            f"{', '.join(actions.names)}; train it on this robot's episodes (worldrl train-idm grasp.steps=1500)"
        )


def counted_steps(success_step: NDArray[np.int64], end: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Until when a closing of the hand counts: control steps ``[E]`` for :func:`closings`.

    What the hand does after the imagined success took no part in it, so whoever judges a rollout cuts it there.

    Args:
        success_step: control step of the imagined success ``[E]``, -1 where there is none.
        end: control steps of each rollout, which all count where nothing was imagined to succeed.
    """
    return np.where(success_step < 0, end, success_step)


def closings(
    grasp: GraspDynamics,
    frame: Tensor,
    instruction: Sequence[str],
    command: Tensor,
    until: NDArray[np.int64],
    claimed: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find each rollout's last closing, and how surprising it is.

    Args:
        grasp: of this robot.
        frame: uint8 ``[E, Y, X, 3]`` at the beginning.
        instruction: ``E`` sentences.
        command: ``[E, T + 1, A]``, from the one at the beginning on.
        until: control steps that count, ``[E]`` (:func:`counted_steps`).
        claimed: bool ``[E]``, the rollout is imagined to succeed.

    Returns:
        Control step at which the hand was told to close ``[E]``, -1 where it never was; and the surprise ``[E]``: where it never was,
        infinite for a claimed success that needs a closing, and 0 otherwise: what takes hold of nothing claims nothing.
    """
    told, last = command.cpu(), until.tolist()
    step = np.array([grasp.actions.last_closing(told[e, : last[e] + 1].numpy()) for e in range(len(told))], np.int64)
    opened = ~grasp.actions.closed(told[:, 0].numpy()).any(axis=1)
    needed = np.array([sentence in grasp.closes for sentence in instruction])
    found = np.where((step < 0) & claimed & opened & needed, np.float32(np.inf), np.float32(0))
    rows = np.flatnonzero(step >= 0)
    if len(rows):
        at = told[torch.from_numpy(rows), torch.from_numpy(step[rows])]
        found[rows] = grasp.normalised_error(frame[rows], [instruction[row] for row in rows.tolist()], at).numpy()
    return step, found


def grasp_error(
    grasp: GraspDynamics,
    embodiment: AnyEmbodiment,
    starts: Sequence[ResetRecord],
    action: Tensor,
    success_step: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Judge dreams by their actions and the frames at which they began.

    Args:
        grasp: of this robot.
        embodiment: integrates the actions.
        starts: where the dreams began.
        action: float32 ``[E, T, A]``.
        success_step: control step of the imagined success ``[E]``, -1 where there is none and all steps count.

    Returns:
        float32 ``[E]``.
    """
    command = commands_from(embodiment, torch.from_numpy(np.stack([record.command for record in starts])), action)
    frame = torch.from_numpy(np.stack([record.memory[-1] for record in starts]))
    until = counted_steps(success_step, action.shape[1])
    said = [record.instruction for record in starts]
    return closings(grasp, frame, said, command, until, success_step >= 0)[1]


def commands_from(embodiment: AnyEmbodiment, command: Tensor, action: Tensor) -> Tensor:
    """Commands ``[E, T + 1, A]`` from the first one ``[E, A]`` and the actions ``[E, T, A]``."""
    return torch.cat([command[:, None], integrate_commands(embodiment, command, action)], dim=1)
