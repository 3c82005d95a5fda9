"""Does the hand close at the object? Inverse dynamics of the grasp reads a rollout's first frame; commands are exact.

An imagined success claims that the last closing before it grasped the object. The claim is uncertain where that closing
was commanded elsewhere than the first frame and the instruction ask for (``rewards.grasp``). It is false where the hand
was open at the beginning and never closed, although all recorded successes of the instruction closed it.

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
from worldrl.core.observation import IMAGE, split_views
from worldrl.core.types import ResetRecord
from worldrl.rewards.grasp import GraspDynamics


def check_robot(grasp: GraspDynamics, actions: ActionSpec) -> None:
    """Raise SettingError for inverse dynamics of another robot."""
    if grasp.actions != actions:
        raise SettingError(
            f"grasp: it learned from a robot whose actions are {', '.join(grasp.actions.names)}, here they are "
            f"{', '.join(actions.names)}; train it on this robot's episodes (worldrl train-idm grasp.steps=1500)"
        )


def counted_steps(success_step: NDArray[np.int64], end: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Control steps ``[E]`` up to which a closing of the hand counts, for :func:`closings`.

    Motion after the imagined success ``success_step`` ``[E]`` took no part in it. Without one (-1) all steps up to
    ``end`` count.
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
    """Find each rollout's last closing, and its normalised error.

    ``frame`` uint8 ``[E, Y, X, 3]`` is the first one, ``command`` ``[E, T + 1, A]`` begins with the one there.
    ``until`` ``[E]`` is of :func:`counted_steps`; ``claimed`` bool ``[E]`` marks imagined successes. Returns control
    step of the closing command ``[E]``, -1 without one; and the normalised error ``[E]``. Without a closing it is
    infinite for a claimed success that needs one, and 0 otherwise.
    """
    command = command.cpu()
    parts = [row[: last + 1].numpy() for row, last in zip(command, until.tolist(), strict=True)]
    step = np.array([grasp.actions.last_closing(part) for part in parts], np.int64)
    opened = ~grasp.actions.closed(command[:, 0].numpy()).any(axis=1)
    needed = np.array([text in grasp.closes for text in instruction])
    found = np.where((step < 0) & claimed & opened & needed, np.float32(np.inf), np.float32(0))
    rows = np.flatnonzero(step >= 0)
    if len(rows):
        at = command[torch.from_numpy(rows), torch.from_numpy(step[rows])]
        found[rows] = grasp.normalised_error(frame[rows], [instruction[row] for row in rows.tolist()], at).numpy()
    return step, found


def grasp_error(
    grasp: GraspDynamics,
    embodiment: AnyEmbodiment,
    starts: Sequence[ResetRecord],
    action: Tensor,
    success_step: NDArray[np.int64],
    more: Sequence[str] = (),
) -> NDArray[np.float32]:
    """Return the grasp's normalised error float32 ``[E]`` of imagined rollouts, from actions and first frames.

    ``action`` is float32 ``[E, T, A]``. ``success_step`` ``[E]`` is the control step of the imagined success, -1
    without one, where all steps count. ``more`` is what the starts show besides the main image.
    """
    command = commands_from(embodiment, torch.from_numpy(np.stack([record.command for record in starts])), action)
    sheets = torch.from_numpy(np.stack([record.memory[-1] for record in starts]))
    frame = split_views(sheets, more)[IMAGE]
    until = counted_steps(success_step, action.shape[1])
    instruction = [record.instruction for record in starts]
    return closings(grasp, frame, instruction, command, until, success_step >= 0)[1]


def commands_from(embodiment: AnyEmbodiment, command: Tensor, action: Tensor) -> Tensor:
    """Commands ``[E, T + 1, A]`` from the first one ``[E, A]`` and the actions ``[E, T, A]``."""
    return torch.cat([command[:, None], integrate_commands(embodiment, command, action)], dim=1)
