"""The critic of ``eva``: plans are executed before any alignment, and a critic learns which of them succeed.

The planner learns from successes alone, and EVA's reward knows smoothness alone, so neither can tell a smooth plan that misses. What
can is experience: ``practice`` plans per task, from initial states that are neither tests nor demonstrations, each with what came of
its execution (``rewards.execution_critic``). On a robot these would have to be paid for; the arms that use them say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.jsonfile import read_json, write_json
from worldrl.core.log import MetricLog
from worldrl.core.rng import numpy_stream
from worldrl.core.stats import auroc
from worldrl.jobs.reproductions.eva_parts import Parts
from worldrl.jobs.reproductions.eva_plans import executed_plans
from worldrl.jobs.reproductions.eva_settings import EvaSettings, chunks_to, task_names_of
from worldrl.jobs.reproductions.shared import shared
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic, fit_execution, held_to
from worldrl.rewards.mixing import mean_of_terms
from worldrl.rollout.staged_rollouts import StagedConfig

WORTH = "worth.json"
"""How well a critic tells plans apart that it has not learned from."""


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


def with_critic(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Parts:
    """Add the seed's critic to parts that have none; made unless another stage has."""
    place = shared(folder, f"critic-seed-{seed}", lambda place: make_critic(settings, seed, parts, place))
    return replace(parts, critic=ExecutionCritic.load(place / CRITIC), critic_worth=read_json(place / WORTH))


def make_critic(settings: EvaSettings, seed: int, parts: Parts, place: Path) -> None:
    """Practise and learn; leave the critic in ``place``, and what it is worth on a share ``kept`` of the plans.

    Raises:
        SettingError: all plans came to the same.
    """
    tried = practised(settings, seed, parts)
    order = numpy_stream(seed, "eva", "practice", "kept").permutation(len(tried.success))
    kept, learned = (tried.select(rows) for rows in np.split(order, [round(settings.kept * len(order))]))
    success, config = torch.from_numpy(learned.success), ExecutionConfig(steps=settings.critic_steps)
    with MetricLog(place) as log:
        critic, _ = fit_execution(
            config, learned.read, learned.instruction, success, seed=seed, folder=place / "checkpoints", log=log
        )
    critic.save(place / CRITIC)
    write_json(place / WORTH, {"learned": len(learned.success), **worth(critic, kept)})


def practised(settings: EvaSettings, seed: int, parts: Parts) -> Practice:
    """Plan from states of every task's own, one video each, and execute."""
    found = [
        executed
        for task in task_names_of(settings)
        for executed in executed_plans(
            settings,
            parts,
            task,
            mean_of_terms,
            StagedConfig(proposals=1, stages=1, stage_chunks=chunks_to(settings, task)),
            count=settings.practice,
            seed=seed,
            purpose="practice",
        )
    ]
    longest = max(plans.read.shape[1] for plans in found)
    read = torch.cat([held_to(plans.read, longest) for plans in found])
    sentences = [record.instruction for plans in found for record in plans.records]
    return Practice(read, sentences, np.concatenate([plans.step >= 0 for plans in found]))


def worth(critic: ExecutionCritic, kept: Practice) -> dict[str, Any]:
    """Say how well a critic tells successes from failures: the area under the ROC curve; None where one kind is missing."""
    hit, n = kept.success, len(kept.success)
    score = critic.reward(kept.read, kept.instruction).numpy()
    area = auroc(score[hit], score[~hit]) if 0 < hit.sum() < n else None
    return {"successes": int(hit.sum()), "failures": int(n - hit.sum()), "auroc": area}
