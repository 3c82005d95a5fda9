"""Planned videos of ``eva`` and their execution, some initial states at a time: what arms are tested by, and what a critic learns from.

Shapes legend: ``N`` plans, ``T`` imagined frames, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import RewardMix
from worldrl.core.rng import stream_seed
from worldrl.core.types import ResetRecord
from worldrl.jobs.reproductions.eva_parts import Parts
from worldrl.jobs.reproductions.eva_settings import EvaSettings
from worldrl.rollout.decoded_plans import execute_targets
from worldrl.rollout.staged_rollouts import StagedConfig, StagedPlans, staged_rollouts
from worldrl.rollout.starts import simulator_starts

AT_ONCE = 8
"""Starts that are planned together."""


@dataclass(frozen=True)
class ExecutedPlans:
    """Plans of one task and what became of them.

    Attributes:
        plans: as they were imagined.
        records: where they begin.
        read: targets that inverse dynamics reads off the imagined frames, ``[N, T, A]``.
        step: control step at which the task was first fulfilled, int64 ``[N]``; -1 where it never was.
    """

    plans: StagedPlans
    records: Sequence[ResetRecord]
    read: Tensor
    step: NDArray[np.int64]


def plan(
    parts: Parts, mixing: RewardMix, records: Sequence[ResetRecord], config: StagedConfig, *, seed: int
) -> StagedPlans:
    """Plan from some records by the parts' model and reward."""
    return staged_rollouts(parts.model, parts.reward, mixing, records, config, frame_s=parts.frame_s, seed=seed)


def executed_plans(
    settings: EvaSettings,
    parts: Parts,
    task: str,
    mixing: RewardMix,
    config: StagedConfig,
    *,
    count: int,
    seed: int,
    purpose: str,
) -> Iterator[ExecutedPlans]:
    """Plan from a task's initial states, which no demonstration begins at, and execute what the plans show.

    Args:
        settings: sizes.
        parts: model, reward and inverse dynamics.
        task: name.
        mixing: of the rewards, where plans are chosen.
        config: how they are chosen.
        count: initial states.
        seed: of the run.
        purpose: names the states and the noise: those of two purposes are different, those of two arms the same.
    """
    source, model = stream_seed(seed, "eva", purpose) % 2**31, parts.model
    records = simulator_starts(
        [task], count, seed=source, memory_frames=model.memory_frames, image_size=settings.image_size
    )
    for first in range(0, count, AT_ONCE):
        some = records[first : first + AT_ONCE]
        plans = plan(parts, mixing, some, config, seed=stream_seed(seed, "eva", purpose, "plans", task, first))
        read = parts.idm.decode(plans.frames).mean[:, 1:].float().cpu()
        starts = [(index, source) for index in range(first, first + len(some))]
        told = torch.from_numpy(np.stack([record.command for record in some]))
        step = execute_targets(read, told, settings.stride, task, starts, model.embodiment.actions)
        yield ExecutedPlans(plans, some, read, step)
