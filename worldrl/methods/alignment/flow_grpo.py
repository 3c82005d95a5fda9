"""Flow-GRPO (Liu et al. 2025, 2505.05470): GRPO on the noisy denoising steps of whole videos.

Every video has its own first noise. EVA's alignment is this with ``denoising.noise=linear`` and a clip of 1e-5.
Flow-GRPO's code normalises by the deviation of the whole batch (``global_std``), EVA's by the group's.
"""

import copy
from dataclasses import dataclass, field

from worldrl.diffusion.sde import Denoising, RatioRule, make_schedule
from worldrl.methods.alignment.ratio import NoisyVideos, ratio_method
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.rl.advantages import batch_std
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.method import Method


@dataclass
class FlowGrpoConfig:
    """Settings of Flow-GRPO."""

    denoising: Denoising = field(default_factory=Denoising)  # steps and noise.
    # reduction of the log-probability and the range that goes with it.
    ratio: RatioRule = field(default_factory=RatioRule)
    kl: float = 0.004  # β, weight of the KL to the starting weights; 0 switches it off.
    global_std: bool = False  # divide advantages by the deviation over all groups instead of each one's own.


def flow_grpo(task: AlignmentTask, config: FlowGrpoConfig, parts: Parts | None = None) -> Method:
    """Noisy denoising steps of whole videos, with the clipped ratio; EVA's alignment is this with linear noise.

    Equation: L = -mean min(ρ A, clip(ρ, 1 ± ε) A) + β KL, ρ of one denoising step
    Paper: Flow-GRPO (2505.05470)
    """
    source = NoisyVideos(task, make_schedule(config.denoising, task.model.config.dynamics.shift), config.ratio.reduce)
    reference = copy.deepcopy(task.dynamics).requires_grad_(False) if config.kl else None
    scale = batch_std if config.global_std else None
    return ratio_method(source, config.ratio, parts, kl=config.kl, reference=reference, advantage=scale)
