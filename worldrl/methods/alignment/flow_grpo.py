"""Flow-GRPO (Liu et al. 2025, 2505.05470): GRPO on the noisy denoising steps of whole videos.

Every video of a group begins with noise of its own; its one reward, normalised within the group, is the advantage of all
of its steps. EVA's alignment is this with ``denoising.noise=linear`` and a clip of 1e-5.

Flow-GRPO's code normalises by the deviation of the whole batch (``global_std``), EVA's by the group's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from worldrl.core.interfaces import Logs
from worldrl.diffusion.sde import Denoising, RatioRule, make_schedule
from worldrl.methods.alignment.ratio import noisy_steps, ratio_losses
from worldrl.methods.alignment.task import AlignmentTask, clipped_advantage, judge, reward_logs
from worldrl.methods.alignment.videos import group_keys, grow


@dataclass
class FlowGrpoConfig:
    """Settings of Flow-GRPO.

    Attributes:
        denoising: steps and noise.
        ratio: reduction of the log-probability and the range that goes with it.
        kl: β, weight of the KL to the starting weights; 0 switches it off.
        global_std: divide advantages by the deviation over all groups instead of each one's own.
    """

    denoising: Denoising = field(default_factory=Denoising)
    ratio: RatioRule = field(default_factory=RatioRule)
    kl: float = 0.004
    global_std: bool = False


class FlowGrpo:
    """Flow-GRPO on an alignment task.

    Args:
        task: model, starts, reward.
        config: settings.
    """

    def __init__(self, task: AlignmentTask, config: FlowGrpoConfig) -> None:
        self.task, self.config = task, config
        self.schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
        self.reference = copy.deepcopy(task.dynamics).requires_grad_(False) if config.kl else None
        self.modules: dict[str, nn.Module] = {}

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine, judge, and yield one loss per gradient step."""
        task, config = self.task, self.config
        keys, group = group_keys(iteration, task.config.prompts, task.config.group_size)
        tree = grow(task, self.schedule, task.draw_starts(iteration), keys, group, reduce=config.ratio.reduce)
        terms = judge(task, tree.latent, tree.start)
        logs.update(reward_logs(task, terms, group), **{"cost/evaluations": torch.tensor(float(tree.evaluations))})
        advantage = clipped_advantage(task, task.mix(terms, group), group, batch_scale=config.global_std)
        every = [advantage] * len(tree.layers)
        steps = noisy_steps(tree.layers, self.schedule, every, [torch.ones_like(group, dtype=torch.bool)] * len(every))
        yield from ratio_losses(
            task, self.schedule, steps, config.ratio, iteration, logs, kl=config.kl, reference=self.reference
        )
