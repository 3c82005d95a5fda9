"""Do imagined frames show the commanded motion? Inverse dynamics reads the frames; commands are exact.

A world model integrates the commanded pose from the actions, whatever its images show. Where the images deviate, the
normalised error (``rewards.motion.similarity``) is large: mean square error in units of the inverse dynamics' expected
error, 1 on true frames.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``L`` control steps per chunk, ``N`` frames, ``A`` numbers of a
command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE, split_views
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord, first_frames
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.similarity import commanded_columns, normalised_error
from worldrl.world_models.video.following import given_actions, roll_forward


def check_spacing(idm: InverseDynamics, frame_stride: int) -> None:
    """Raise SettingError for an inverse dynamics whose windows are made for frames of another distance."""
    if idm.config.window > 1 and idm.frame_stride != frame_stride:
        raise SettingError(
            f"idm: made for frames {idm.frame_stride} control steps apart, these are {frame_stride} apart; train it with "
            f"frame_stride={frame_stride}, or with model.window=1"
        )


def motion_error(idm: InverseDynamics, frames: Tensor, command: Tensor) -> Tensor:
    """Return the normalised error at each frame ``[E, N]``, on the CPU.

    ``frames`` are uint8 ``[E, N, Y, X, 3]``, ``command`` the commanded pose at each ``[E, N, A]``.
    """
    own, theirs = commanded_columns(idm)
    decoded = idm.decode(frames)
    return normalised_error(decoded.mean[..., own].cpu(), decoded.std[..., own].cpu(), command[..., theirs].cpu())


@torch.no_grad()
def rollout_motion_error(
    model: Any, idm: InverseDynamics, starts: Sequence[ResetRecord], action: Tensor, *, seed: int
) -> NDArray[np.float32]:
    """Imagine rollouts again, with their own actions and noise, and read every frame: float32 ``[E, N]``.

    ``starts`` (task after task), ``action`` float32 ``[E, T, A]`` and ``seed`` are those of
    ``rollout.imagined.policy_rollouts.imagine_policy``; ``model`` is a video world model that decodes latents.
    """
    check_spacing(idm, model.frame_stride)
    tasks = np.array([record.task for record in starts])
    rows = [np.flatnonzero(tasks == task) for task in dict.fromkeys(tasks.tolist())]
    parts = [_of_one_task(model, idm, [starts[int(r)] for r in of_task], action[of_task], seed) for of_task in rows]
    found = np.empty((len(starts), parts[0].shape[1]), np.float32)
    for of_task, part in zip(rows, parts, strict=True):
        found[of_task] = part.numpy()
    return found


def _of_one_task(model: Any, idm: InverseDynamics, starts: list[ResetRecord], action: Tensor, seed: int) -> Tensor:
    state, first = model.start(starts), first_frames(starts)
    frames, commands = [], []

    def noise(chunk: int) -> list[torch.Generator]:
        # The names under which ``imagine_policy_rows`` drew: a row's number counts within its task.
        return [stream(seed, "dream", "noise", record.task, row, chunk) for row, record in enumerate(starts)]

    act, chunks = given_actions(action, model.chunk_length), action.shape[1] // model.chunk_length
    for _, imagined in roll_forward(model, state, chunks, act, noise):
        frames.append(split_views(model.decode(imagined.latent, first).cpu(), model.more)[IMAGE])
        commands.append(imagined.command[:, [step - 1 for step in imagined.frame_steps]].cpu())
    return motion_error(idm, torch.cat(frames, dim=1), torch.cat(commands, dim=1))
