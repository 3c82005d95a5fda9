"""Planned videos of ``eva`` and their execution, some initial states at a time: what arms are tested by, and what a judge learns from.

Shapes legend: ``N`` plans, ``T`` imagined frames, ``s`` control steps per frame, ``A`` numbers of an action.
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
from worldrl.core.types import Episode, ResetRecord
from worldrl.jobs.reproductions.eva_parts import Parts
from worldrl.jobs.reproductions.eva_settings import EvaSettings
from worldrl.rollout.decoded_plans import execute_targets, joint_path
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

    @property
    def told(self) -> Tensor:
        """The commands that hold where the plans begin, ``[N, A]``."""
        return torch.from_numpy(np.stack([record.command for record in self.records]))


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


def planned_episodes(settings: EvaSettings, parts: Parts, found: ExecutedPlans) -> list[Episode]:
    """Tell executed plans as episodes: the frames as they were imagined, the success as it really came.

    A task that was fulfilled after the plan's end, while its last targets were held, counts as fulfilled at its last frame.
    """
    actions = parts.model.embodiment.actions
    paths = joint_path(found.told, found.read, settings.stride, actions)
    frames = found.plans.frames.numpy()
    return [
        _planned_episode(settings, parts, record, path, video, int(step))
        for record, path, video, step in zip(found.records, paths, frames, found.step, strict=True)
    ]


def _planned_episode(
    settings: EvaSettings,
    parts: Parts,
    record: ResetRecord,
    path: NDArray[np.float32],
    video: NDArray[np.uint8],
    step: int,
) -> Episode:
    """Show each imagined frame from the control step after the one before it on; ``path`` is float32 ``[T s, A]``."""
    steps, command = len(path), np.concatenate([record.command[None], path])
    reward = np.zeros(steps, np.float32)
    if step >= 0:
        reward[min(step, steps) - 1 :] = 1
    return Episode(
        frames=video[-(-np.arange(steps + 1) // settings.stride)][:, None],
        state=command,
        command=command,
        action=path,
        reward=reward,
        contact=np.zeros(steps + 1, np.bool_),
        terminated=step >= 0,
        truncated=step < 0,
        instruction=record.instruction,
        task=record.task,
        cameras=parts.kept[0].cameras,
        meta={"source": f"plan from {record.source}"},
        actions=parts.model.embodiment.actions,
    )
