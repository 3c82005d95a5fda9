"""Success shown by an imagined video, as a reward that a frozen world model reads off the frames.

The outcome ensemble of a world model that is not trained reads the finished video. The reward is the largest
threshold under which the plan still counts as success by the rule of ``m`` consecutive frames::

    p_t = mean_j sigmoid(z_j(frames up to t)),     R = max_t min_{0 <= k < m} p_{t+k}

Heads on the features of the trained network could be fooled by a change of these features instead of the image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.motion.basis import check_terms
from worldrl.rewards.success import debounced_score
from worldrl.world_models.video.head_predictions import read_success
from worldrl.world_models.video.model import VideoWorldModel

TERM = "success"


@dataclass(frozen=True)
class SuccessReward:
    """Probability of success as a :class:`~worldrl.core.interfaces.VideoReward`; ``model`` is frozen and not shared."""

    model: VideoWorldModel
    names: tuple[str, ...] = (TERM,)

    def score(self, videos: ImaginedVideos) -> Tensor:
        """R ``[N, 1]`` in [0, 1] of every video; SettingError: it does not fit the world model."""
        self._check(videos)
        command = None if videos.command is None else videos.command[:, 0]
        probability = read_success(self.model, videos.frames, videos.instruction, command, videos.action).numpy()
        debounce = min(self.model.config.outcome.debounce, probability.shape[1])
        return torch.from_numpy(debounced_score(probability, debounce))[:, None]

    def _check(self, videos: ImaginedVideos) -> None:
        own, needed = self.model.config.outcome.conditioning, "instruction" if videos.action is None else "actions"
        if own != needed:
            raise SettingError(
                f"folders.success: that world model's outcome head is conditioned on {own}, these videos on {needed}; train it with "
                f"worldrl train-world-model start=FOLDER model.outcome.conditioning={needed} training.steps=0 training.outcome_steps=2000"
            )
        apart = self.model.frame_stride / self.model.embodiment.control_hz
        if abs(videos.frame_s - apart) > 1e-6:
            raise SettingError(
                f"folders.success: that world model's frames are {apart:g} s apart, the videos' {videos.frame_s:g} s; take one "
                "of the same frame stride"
            )


def success_reward(folder: str, terms: Sequence[str], device: torch.device) -> SuccessReward:
    """Make the reward ``success``.

    Equation: R = the largest debounced probability of success
    Paper: World-VLA-Loop

    Raises ArtefactError: no world model in the folder; SettingError: no folder is given, or an unknown term.
    """
    if not folder:
        raise SettingError(
            "folders.success: this reward needs the folder of a world model that is not trained; "
            "give the folder of start, for example"
        )
    check_terms(terms, (TERM,))
    return SuccessReward(VideoWorldModel.load(Path(folder), device).requires_grad_(False))
