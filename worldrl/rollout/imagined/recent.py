"""The newest observations of imagined rollouts, one per control step: recorded ones at the start, then the model's own.

A model whose ``frame_stride`` is above 1 imagines no observation at the steps between, so it keeps the newest alone.

Shapes legend: ``B`` rows, ``N`` observations, ``L`` control steps per chunk, ``K`` memory frames, ``A`` numbers of a
command, ``S`` measured numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import Policy, WorldModel
from worldrl.core.observation import COMMAND, IMAGE, STATE, split_views
from worldrl.core.types import Imagined, PolicyObs, ResetRecord

Recent = dict[str, Tensor]
"""Each camera's images uint8 ``[B, N, Y, X, 3]``, state ``[B, N, S]`` and command ``[B, N, A]``, the oldest first."""


def recorded(records: Sequence[ResetRecord], more: Sequence[str], count: int) -> Recent:
    """Return the newest ``count <= K`` observations of start states; an episode's first stands for those before it."""
    sheets = torch.from_numpy(np.stack([record.memory[-count:] for record in records]))
    numbers = {COMMAND: [_numbers(record.memory_command, record.command, count) for record in records]}
    if STATE in more:
        numbers[STATE] = [_numbers(record.memory_state, record.state, count) for record in records]
    return {**split_views(sheets, more), **{name: torch.from_numpy(np.stack(rows)) for name, rows in numbers.items()}}


def _numbers(memory: NDArray[np.float32] | None, now: Any, count: int) -> NDArray[np.float32]:
    before = np.repeat(now[None], count - 1, axis=0) if memory is None else memory[-count:-1]
    return np.concatenate([before, now[None]])


def after_chunk(recent: Recent, model: WorldModel, state: Any, imagined: Imagined) -> Recent:
    """Add the last observations of a chunk that ended in ``state``."""
    count = min(recent[COMMAND].shape[1], model.chunk_length)
    new = {**split_views(model.decode_newest(state, count), model.more), COMMAND: imagined.command[:, -count:]}
    if imagined.state is not None:
        new[STATE] = imagined.state[:, -count:].float()
    return {name: torch.cat([old[:, count:], new[name].cpu()], dim=1) for name, old in recent.items()}


def policy_obs(recent: Recent, instruction: Sequence[str], policy: Policy) -> PolicyObs:
    """Take what a policy observes: ``n_obs_steps`` observations, at most ``N``."""
    steps = [{name: value[:, at] for name, value in recent.items()} for at in range(-policy.n_obs_steps, 0)]
    *past, newest = (
        PolicyObs(step[IMAGE], step[COMMAND], instruction, {name: step[name] for name in policy.more}) for step in steps
    )
    return replace(newest, past=tuple(past))
