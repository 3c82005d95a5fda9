"""Sol-RL (2604.06916): explore cheaply, train on what is made again in full.

1. Many videos per prompt with few denoising steps in a small number type; of these only the *keys* of the best and the
   worst are kept.
2. The kept keys are imagined again with all steps in full precision and judged again. The sampler is deterministic, so a
   key's noise fixes what is seen, and the ranking mostly stands.
3. DiffusionNFT trains on the second videos and rewards alone: training on the cheap ones collapses.

Advantages are normalised over the videos that were made again, as published (``normalise_on: kept``), or over everything
that was explored.

Shapes legend: ``N`` prompts, ``W`` explored videos per prompt, ``B`` videos made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.diffusion.sde import make_schedule
from worldrl.methods.alignment.diffusion_nft import (
    DiffusionNft,
    DiffusionNftConfig,
    FinishedChunks,
    finished_chunks,
)
from worldrl.methods.alignment.task import BATCH_EPS, AlignmentTask, advantages, judge, reward_logs
from worldrl.methods.alignment.videos import VideoTree, group_keys, grow
from worldrl.methods.rl.advantages import group_mean, group_sum
from worldrl.world_models.video.model import VideoWorldModel

NORMALISERS = ("kept", "explored")


@dataclass
class SolRlConfig:
    """Settings of Sol-RL; how many videos are made again in full is ``alignment.group_size``, half best and half worst.

    Attributes:
        explored: videos per prompt in the first stage.
        explore_steps: denoising steps in the first stage.
        explore_dtype: its number type: ``auto`` (bfloat16 where the device has units for it), ``float32`` or ``bfloat16``.
        resample: imagine the kept videos again in full; false trains on the explored videos, which is Sol-RL's own
            baseline where these are made in full (as many steps, the same number type).
        normalise_on: over which videos advantages are normalised: ``kept`` or ``explored``.
        nft: DiffusionNFT's settings, with the steps of the second stage.
    """

    explored: int = 24
    explore_steps: int = 2
    explore_dtype: str = "auto"
    resample: bool = True
    normalise_on: str = "kept"
    nft: DiffusionNftConfig = field(default_factory=DiffusionNftConfig)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.normalise_on not in NORMALISERS:
            raise SettingError(
                f"sol_rl.normalise_on: unknown {self.normalise_on!r}{nearest(self.normalise_on, NORMALISERS)}"
            )
        if self.explored < 2 or self.explore_steps < 1:
            raise SettingError("sol_rl needs explored of at least 2 and explore_steps of at least 1")
        if not self.resample and (self.explore_steps != self.nft.denoising.steps or self.explore_dtype != "float32"):
            raise SettingError(
                f"sol_rl.resample=false trains on what was explored, so it must be explored in full: give explore_steps="
                f"{self.nft.denoising.steps} and explore_dtype=float32"
            )


def best_and_worst(value: Tensor, group: Tensor, count: int) -> Tensor:
    """Choose the ``count // 2`` worst and ``count - count // 2`` best rows of every group, int64, in order of group."""
    chosen: list[Tensor] = []
    for number in group.unique():
        rows = (group == number).nonzero()[:, 0]
        ordered = rows[value[rows].argsort(stable=True)]
        worst = count // 2
        chosen += [ordered[:worst], ordered[len(rows) - (count - worst) :]]
    return torch.cat(chosen)


def explored_advantage(
    value: Tensor, group: Tensor, explored: Tensor, explored_group: Tensor, limit: float, *, batch_scale: bool = False
) -> Tensor:
    """Normalise values ``[B]`` by mean and deviation of everything explored in their group, clipped to ± ``limit``.

    With ``batch_scale`` the deviation is that of everything explored in all groups.
    """
    mean = group_mean(explored, explored_group)
    centred = value - mean[group]
    if batch_scale:
        return (centred / (explored.std(correction=0) + BATCH_EPS)).clamp(-limit, limit)
    spread = (explored - mean[explored_group]).square()
    count = group_sum(torch.ones_like(explored), explored_group)
    std = (group_sum(spread, explored_group) / (count - 1).clamp_min(1)).sqrt()
    return (centred / (std[group] + 1e-6)).clamp(-limit, limit)


def rank_agreement(first: Tensor, second: Tensor) -> float:
    """Share of pairs that both lists ``[B]`` put in the same order, ties left out; 1/2 is chance, NaN without a pair."""
    order = (first[:, None] - first).sign() * (second[:, None] - second).sign()
    pairs = order.triu(diagonal=1)
    counted = (pairs != 0).sum()
    return float((pairs > 0).sum() / counted) if counted else float("nan")


def kept_chunks(tree: VideoTree, kept: Tensor, advantage: Tensor) -> FinishedChunks:
    """Collect the chunks of some videos of a tree without splits: ``kept`` int64 ``[B]``, of which ``advantage`` ``[B]``."""
    videos = len(tree.group)
    every = finished_chunks(tree, torch.zeros(videos).index_copy(0, kept, advantage))
    chunks = torch.arange(len(every.latent) // videos)
    return every.select((chunks[:, None] * videos + kept).flatten())


@contextmanager
def precision(model: VideoWorldModel, dtype: torch.dtype) -> Iterator[None]:
    """Let the model imagine in another number type for a while."""
    before, model.compute_dtype = model.compute_dtype, dtype
    try:
        yield
    finally:
        model.compute_dtype = before


class SolRl:
    """Sol-RL on an alignment task.

    Args:
        task: model, starts, reward.
        config: settings.
    """

    def __init__(self, task: AlignmentTask, config: SolRlConfig) -> None:
        if config.explored < task.config.group_size:
            raise SettingError(
                f"sol_rl.explored must be at least alignment.group_size {task.config.group_size}, got {config.explored}"
            )
        self.task, self.config = task, config
        self.nft = DiffusionNft(task, config.nft)
        cheap = replace(config.nft.denoising, steps=config.explore_steps)
        self.cheap = make_schedule(cheap, task.model.config.dynamics.shift)
        self.dtype = resolve_dtype(config.explore_dtype, task.model.device)
        self.modules: dict[str, nn.Module] = self.nft.modules

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Explore, imagine the extremes again, and yield one loss per gradient step."""
        task, config = self.task, self.config
        start = task.draw_starts(iteration)
        keys, group = group_keys(iteration, task.config.prompts, config.explored)
        with precision(task.model, self.dtype):
            cheap = grow(task, self.cheap, start, keys, group, dynamics=self.nft.old)
        explored = judge(task, cheap.latent, cheap.start)
        value = task.mix(explored, group)
        kept = best_and_worst(value, group, task.config.group_size)
        logs.update(reward_logs(task, explored, group))
        logs["cost/explore_evaluations"] = torch.tensor(float(cheap.evaluations))
        if not config.resample:
            advantage = self._advantage(explored[kept], group[kept], explored, group)
            yield from self.nft.update(kept_chunks(cheap, kept, advantage), iteration, logs)
            return
        full = grow(
            task, self.nft.schedule, start, [keys[i] for i in kept.tolist()], group[kept], dynamics=self.nft.old
        )
        terms = judge(task, full.latent, full.start)
        logs["cost/evaluations"] = torch.tensor(float(full.evaluations))
        logs["align/rank_agreement"] = torch.tensor(rank_agreement(value[kept], task.mix(terms, group[kept])))
        advantage = self._advantage(terms, group[kept], explored, group)
        yield from self.nft.update(finished_chunks(full, advantage), iteration, logs)

    def _advantage(self, terms: Tensor, group: Tensor, explored: Tensor, explored_group: Tensor) -> Tensor:
        task = self.task
        if self.config.normalise_on == "kept":
            return advantages(task, terms, group)
        # Mixed together, so that both are on one scale.
        value = task.mix(torch.cat([terms, explored]), torch.cat([group, explored_group]))
        own, all_of_them = value[: len(terms)], value[len(terms) :]
        limit = task.config.advantage_clip
        return explored_advantage(own, group, all_of_them, explored_group, limit, batch_scale=task.batch_scale)
