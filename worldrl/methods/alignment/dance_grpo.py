"""DanceGRPO (Xue et al. 2025, 2505.07818): constant noise, one first noise per group, a random part of the steps trained.

That all videos of a group begin with the same noise leaves the noisy steps alone to explain their different rewards.
There is no KL term; a share of each video's noisy steps, drawn anew for every video, carries its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream
from worldrl.diffusion.sde import Denoising, RatioRule, Schedule, make_schedule
from worldrl.methods.alignment.ratio import noisy_steps, ratio_losses
from worldrl.methods.alignment.task import AlignmentTask, advantages, judge, reward_logs
from worldrl.methods.alignment.videos import Layer, group_keys, grow


def _denoising() -> Denoising:
    return Denoising(noise="constant", eta=0.3)


@dataclass
class DanceGrpoConfig:
    """Settings of DanceGRPO.

    Attributes:
        denoising: steps and noise.
        ratio: reduction of the log-probability and the range that goes with it.
        trained_share: of each video's noisy steps; at least one.
    """

    denoising: Denoising = field(default_factory=_denoising)
    ratio: RatioRule = field(default_factory=RatioRule)
    trained_share: float = 0.6

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 < self.trained_share <= 1:
            raise SettingError(f"dance_grpo.trained_share must be in (0, 1], got {self.trained_share}")


def random_steps(layers: Sequence[Layer], schedule: Schedule, share: float, generator: torch.Generator) -> list[Tensor]:
    """Choose a share of each row's noisy steps: per layer bool ``[R]``; the layers have no splits."""
    noisy = [n for n, layer in enumerate(layers) if layer.step in schedule.noisy]
    rows, count = len(layers[0].group), max(1, round(share * len(noisy)))
    rank = torch.rand(len(noisy), rows, generator=generator).argsort(dim=0).argsort(dim=0)
    keep = [torch.zeros(rows, dtype=torch.bool) for _ in layers]
    for place, n in enumerate(noisy):
        keep[n] = rank[place] < count
    return keep


class DanceGrpo:
    """DanceGRPO on an alignment task.

    Args:
        task: model, starts, reward.
        config: settings.
    """

    def __init__(self, task: AlignmentTask, config: DanceGrpoConfig) -> None:
        self.task, self.config = task, config
        self.schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
        self.modules: dict[str, nn.Module] = {}

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine, judge, and yield one loss per gradient step."""
        task, config, schedule = self.task, self.config, self.schedule
        keys, group = group_keys(iteration, task.config.prompts, task.config.group_size)
        start = task.draw_starts(iteration)
        tree = grow(task, schedule, start, keys, group, reduce=config.ratio.reduce, shared_noise=True)
        terms = judge(task, tree.latent, tree.start)
        logs.update(reward_logs(task, terms, group), **{"cost/evaluations": torch.tensor(float(tree.evaluations))})
        keep = random_steps(tree.layers, schedule, config.trained_share, stream(task.seed, "trained", iteration))
        steps = noisy_steps(tree.layers, schedule, [advantages(task, terms, group)] * len(keep), keep)
        yield from ratio_losses(task, schedule, steps, config.ratio, iteration, logs)
