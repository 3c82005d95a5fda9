"""A video model plans from initial states of the embedded suite, and the simulator executes what its videos show.

What arms of ``reproduce eva`` are tested by, and what a critic of plans learns from (``rewards.execution_critic``).

Shapes legend: ``N`` plans, ``T`` imagined frames, ``D`` targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import RewardMix, VideoReward
from worldrl.core.jsonfile import write_json
from worldrl.core.log import MetricLog
from worldrl.core.rng import numpy_stream, stream_seed
from worldrl.core.stats import auroc
from worldrl.core.types import ResetRecord
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic, fit_execution, held_to
from worldrl.rewards.inverse_dynamics import InverseDynamics
from worldrl.rollout.decoded_plans import execute_targets
from worldrl.rollout.staged_rollouts import StagedConfig, StagedPlans, staged_rollouts
from worldrl.rollout.starts import simulator_starts
from worldrl.world_models.video import VideoWorldModel

AT_ONCE = 8
"""Starts that are planned together."""
WORTH = "worth.json"
"""How well a critic tells plans apart that it has not learned from."""


@dataclass(frozen=True)
class Planning:
    """Who plans, who reads the plans, and by what they are chosen.

    Attributes:
        model: plans.
        idm: reads the whole command (:func:`~worldrl.rollout.decoded_plans.check_targets`).
        reward: of finished videos.
        mixing: makes one number of its terms, where one of several plans is chosen.
        seed: of all draws.
    """

    model: VideoWorldModel
    idm: InverseDynamics
    reward: VideoReward
    mixing: RewardMix
    seed: int

    def plan(self, records: Sequence[ResetRecord], config: StagedConfig, *purpose: Any) -> StagedPlans:
        """Plan from some records; ``purpose`` names the noise."""
        frame_s, seed = self.model.frame_stride / self.model.embodiment.control_hz, stream_seed(self.seed, *purpose)
        return staged_rollouts(self.model, self.reward, self.mixing, records, config, frame_s=frame_s, seed=seed)


@dataclass(frozen=True)
class ExecutedPlans:
    """Plans of one task and what became of them.

    Attributes:
        plans: as they were imagined.
        records: where they begin.
        read: targets that inverse dynamics reads off the imagined frames, ``[N, T, D]``.
        step: control step at which the task was first fulfilled, int64 ``[N]``; -1 where it never was.
    """

    plans: StagedPlans
    records: Sequence[ResetRecord]
    read: Tensor
    step: NDArray[np.int64]


def executed_plans(
    planning: Planning, task: str, config: StagedConfig, *, count: int, purpose: str
) -> Iterator[ExecutedPlans]:
    """Plan from a task's initial states and execute what the plans show, open loop.

    Args:
        planning: who plans and reads.
        task: name.
        config: how plans are chosen.
        count: initial states.
        purpose: names the states and the noise: those of two purposes are different, those of two models the same.
    """
    model, source = planning.model, stream_seed(planning.seed, purpose) % 2**31
    size = model.config.codec.image_size
    records = simulator_starts([task], count, seed=source, memory_frames=model.memory_frames, image_size=size)
    for first in range(0, count, AT_ONCE):
        some = records[first : first + AT_ONCE]
        plans = planning.plan(some, config, purpose, "plans", task, first)
        read = planning.idm.decode(plans.frames).mean[:, 1:].float().cpu()
        told = torch.from_numpy(np.stack([record.command for record in some]))
        starts = [(index, source) for index in range(first, first + len(some))]
        step = execute_targets(read, told, model.frame_stride, task, starts, model.embodiment.actions)
        yield ExecutedPlans(plans, some, read, step)


# --- practice: what a critic learns from ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Practice:
    """Executed plans of all tasks.

    Attributes:
        read: targets read off the imagined frames, float32 ``[N, T, D]``; shorter plans hold their last ones.
        instruction: ``N`` sentences.
        success: bool ``[N]``.
    """

    read: Tensor
    instruction: list[str]
    success: NDArray[np.bool_]

    def select(self, rows: NDArray[np.int64]) -> Practice:
        """Take some plans."""
        chosen = [self.instruction[row] for row in rows]
        return Practice(self.read[torch.from_numpy(rows)], chosen, self.success[rows])


def practise(planning: Planning, chunks: dict[str, int], count: int) -> Practice:
    """Plan one video from each of ``count`` states of every task, as long as ``chunks`` says of it, and execute them."""
    found = [
        executed
        for task, length in chunks.items()
        for executed in executed_plans(
            planning, task, StagedConfig(stage_chunks=length, proposals=1), count=count, purpose="practice"
        )
    ]
    longest = max(plans.read.shape[1] for plans in found)
    read = torch.cat([held_to(plans.read, longest) for plans in found])
    sentences = [record.instruction for plans in found for record in plans.records]
    return Practice(read, sentences, np.concatenate([plans.step >= 0 for plans in found]))


def learn_critic(tried: Practice, config: ExecutionConfig, kept: float, place: Path, *, seed: int) -> None:
    """Leave a critic in ``place/critic``, its curve, and what it is worth on a share ``kept`` of the plans.

    Raises:
        SettingError: all plans came to the same.
    """
    order = numpy_stream(seed, "practice", "kept").permutation(len(tried.success))
    apart, learned = (tried.select(rows) for rows in np.split(order, [round(kept * len(order))]))
    success = torch.from_numpy(learned.success)
    with MetricLog(place) as log:
        critic, _ = fit_execution(
            config, learned.read, learned.instruction, success, seed=seed, folder=place / "checkpoints", log=log
        )
    critic.save(place / CRITIC)
    write_json(place / WORTH, {"learned": len(learned.success), **worth(critic, apart)})


def worth(critic: ExecutionCritic, apart: Practice) -> dict[str, Any]:
    """Say how well a critic tells successes from failures: the area under the ROC curve; None where one kind is missing."""
    hit, area = apart.success, None
    if hit.any() and not hit.all():
        score = critic.reward(apart.read, apart.instruction).numpy()
        area = auroc(score[hit], score[~hit])
    return {"successes": int(hit.sum()), "failures": int((~hit).sum()), "auroc": area}
