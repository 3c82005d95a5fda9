"""DanceGRPO (Xue et al. 2025, 2505.07818): constant noise, one first noise per group, a random part of the steps trained.

That all videos of a group begin with the same noise leaves the noisy steps alone to explain their different rewards.
There is no KL term; a share of each video's noisy steps, drawn anew for every video, carries its gradient.
"""

from dataclasses import dataclass, field

from worldrl.core.errors import SettingError
from worldrl.diffusion.sde import Denoising, RatioRule, make_schedule
from worldrl.methods.alignment.ratio import NoisyVideos, ratio_method
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.method import Method, fitted
from worldrl.methods.rl.selection import random_steps


def _denoising() -> Denoising:
    return Denoising(noise="constant", eta=0.3)


@dataclass
class DanceGrpoConfig:
    """Settings of DanceGRPO."""

    denoising: Denoising = field(default_factory=_denoising)  # steps and noise.
    # reduction of the log-probability and the range that goes with it.
    ratio: RatioRule = field(default_factory=RatioRule)
    trained_share: float = 0.6  # of each video's noisy steps; at least one.

    def __post_init__(self) -> None:
        if not 0 < self.trained_share <= 1:
            raise SettingError(f"dance_grpo.trained_share must be in (0, 1], got {self.trained_share}")


def dance_grpo(task: AlignmentTask, config: DanceGrpoConfig, parts: Parts | None = None) -> Method:
    """Constant noise, one first noise for all videos of a prompt, and a random share of the steps trained.

    Equation: L = -mean min(ρ A, clip(ρ, 1 ± ε) A) over a random 60 % of a video's noisy steps
    Paper: DanceGRPO (2505.07818)
    """
    schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
    source = NoisyVideos(task, schedule, config.ratio.reduce, shared_noise=True)
    return ratio_method(source, config.ratio, parts, selection=fitted(random_steps, trained_share=config.trained_share))
