"""Sol-RL (2604.06916): explore cheaply, train on what is made again in full.

1. Many videos per prompt with few denoising steps in a small number type; the keys of the best and the worst are kept.
2. These are imagined with all steps in full precision and rewarded again. The sampler is deterministic, so a key's noise
   fixes what is seen, and the ranking mostly stands.
3. DiffusionNFT trains on the second videos and rewards alone: training on the cheap ones collapses.

Advantages are normalised over the videos made again, as published (``normalise_on: kept``), or over all explored ones.

Shapes legend: ``N`` prompts, ``W`` explored videos per prompt, ``B`` videos made again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.diffusion.sde import make_schedule
from worldrl.methods.alignment.diffusion_nft import DiffusionNftConfig, FinishedVideos, diffusion_nft
from worldrl.methods.alignment.imagination import VideoImagination
from worldrl.methods.alignment.task import AlignmentTask, reward_logs
from worldrl.methods.alignment.videos import VideoTree
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.interfaces import Collected, Request, RewardMix
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.selection import best_and_worst
from worldrl.world_models.video.model import VideoWorldModel

NORMALISERS = ("kept", "explored")


@dataclass
class SolRlConfig:
    """Settings of Sol-RL; how many videos are made again in full is ``alignment.group_size``, half best and half worst."""

    explored: int = 24  # videos per prompt in the first stage.
    explore_steps: int = 2  # denoising steps in the first stage.
    # its number type: ``auto`` (bfloat16 where the device has units for it), ``float32`` or ``bfloat16``.
    explore_dtype: str = "auto"
    # imagine the kept videos again in full; false trains on the explored videos, which is Sol-RL's own baseline where
    # these are made in full (as many steps, the same number type).
    resample: bool = True
    normalise_on: str = "kept"  # over which videos advantages are normalised: ``kept`` or ``explored``.
    # DiffusionNFT's settings, with the steps of the second stage.
    nft: DiffusionNftConfig = field(default_factory=DiffusionNftConfig)

    def __post_init__(self) -> None:
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


def rank_agreement(first: Tensor, second: Tensor) -> float:
    """Share of pairs that both lists ``[B]`` put in the same order, ties left out; 1/2 is chance, NaN without a pair."""
    order = (first[:, None] - first).sign() * (second[:, None] - second).sign()
    pairs = order.triu(diagonal=1)
    counted = (pairs != 0).sum()
    return float((pairs > 0).sum() / counted) if counted else float("nan")


@contextmanager
def precision(model: VideoWorldModel, dtype: torch.dtype) -> Iterator[None]:
    """Let the model imagine in another number type for a while."""
    before, model.compute_dtype = model.compute_dtype, dtype
    try:
        yield
    finally:
        model.compute_dtype = before


@dataclass(frozen=True)
class TwoStages:
    """Explore cheaply, and imagine the best and the worst again in full.

    Equation: the G/2 best and G/2 worst of W by R
    Paper: Sol-RL (2604.06916)
    """

    cheap: VideoImagination  # imagines with few steps.
    dtype: torch.dtype  # its number type.
    keep: int  # videos per prompt that are made again.
    config: SolRlConfig  # whether they are, and what advantages are normalised over.

    def __call__(self, source: VideoImagination, request: Request, mix: RewardMix, logs: Logs) -> Collected[VideoTree]:
        """Return the videos that are learned from."""
        with precision(source.task.model, self.dtype):
            cheap: VideoTree = self.cheap.imagine(request)
        explored = source.score(cheap)
        value = mix(explored, cheap.group)
        kept = best_and_worst(value, cheap.group, self.keep)
        logs.update(reward_logs(source.task, explored, cheap.group))
        logs["cost/explore_evaluations"] = torch.tensor(float(cheap.evaluations))
        pool = (explored, cheap.group) if self.config.normalise_on == "explored" else None
        if not self.config.resample:
            return Collected(cheap.select(kept), explored[kept], pool)
        full: VideoTree = source.imagine(request.select(kept))
        terms = source.score(full)
        logs["cost/evaluations"] = torch.tensor(float(full.evaluations))
        logs["align/rank_agreement"] = torch.tensor(rank_agreement(value[kept], mix(terms, full.group)))
        return Collected(full, terms, pool)


def sol_rl(task: AlignmentTask, config: SolRlConfig, parts: Parts | None = None) -> Method:
    """DiffusionNFT on the extremes of many videos that were explored with few steps.

    Equation: that of DiffusionNFT, on the G/2 best and G/2 worst of W explored videos of each prompt
    Paper: Sol-RL (2604.06916)
    """
    if config.explored < task.config.group_size:
        raise SettingError(
            f"sol_rl.explored must be at least alignment.group_size {task.config.group_size}, got {config.explored}"
        )
    few = replace(config.nft.denoising, steps=config.explore_steps)
    method = diffusion_nft(task, config.nft, parts, rows=task.config.prompts * config.explored)
    assert isinstance(method.source, FinishedVideos)
    cheap = replace(method.source, schedule=make_schedule(few, task.model.config.dynamics.shift))
    dtype = resolve_dtype(config.explore_dtype, task.model.device)
    return replace(method, schedule=TwoStages(cheap, dtype, task.config.group_size, config))
