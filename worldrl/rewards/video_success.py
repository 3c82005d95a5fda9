"""Does an imagined video show success? A reward of the task itself, read off the frames by a frozen world model.

Executability knows smoothness alone: a plan that misses the object smoothly has nothing to gain from it. What is missing is whether
the video shows the task fulfilled. The outcome jury of a world model that is not trained along reads the finished video
(``world_models.video.head_predictions``), with a probability p_t at each frame, and the plan is worth the largest threshold under which it
would still count as a success by the model's own rule of ``m`` frames in a row (:func:`worldrl.rewards.success.debounced_score`)::

    p_t = mean_j sigmoid(z_j(frames up to t)),     R = max_t min_{0 <= k < m} p_{t+k}

The judge is a copy in a folder of its own: heads that read the features of the network that is being trained could be fooled by
moving these features instead of the picture.

Shapes legend: ``N`` videos, ``T`` frames.
"""

from __future__ import annotations

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
    """Probability of success as a :class:`~worldrl.core.interfaces.VideoReward`.

    Attributes:
        judge: frozen; nobody else may hold it.
    """

    judge: VideoWorldModel
    names: tuple[str, ...] = (TERM,)

    def score(self, videos: ImaginedVideos) -> Tensor:
        """Read every video from its recorded first frame on: R ``[N, 1]`` in [0, 1].

        Raises:
            SettingError: the judge has learned to read the other kind of video, planned or told its actions; or their frames are
                further apart, of another size, or no whole chunks of its own.
        """
        self._check(videos)
        command = None if videos.command is None else videos.command[:, 0]
        probability = read_success(self.judge, videos.frames, videos.instruction, command, videos.action).numpy()
        debounce = min(self.judge.config.outcome.debounce, probability.shape[1])
        return torch.from_numpy(debounced_score(probability, debounce))[:, None]

    def _check(self, videos: ImaginedVideos) -> None:
        own, needed = self.judge.config.outcome.conditioning, "instruction" if videos.action is None else "actions"
        if own != needed:
            raise SettingError(
                f"folders.success: that world model's outcome head is conditioned on {own}, these videos on {needed}; train it with "
                f"worldrl train-world-model start=FOLDER model.outcome.conditioning={needed} training.steps=0 training.outcome_steps=2000"
            )
        apart = self.judge.frame_stride / self.judge.embodiment.control_hz
        if abs(videos.frame_s - apart) > 1e-6:
            raise SettingError(
                f"folders.success: that world model's frames are {apart:g} s apart, the videos' {videos.frame_s:g} s; take one "
                "of the same frame stride"
            )


def success_reward(folder: str, terms: Sequence[str], device: torch.device) -> SuccessReward:
    """Make the reward ``success``.

    Equation: R = the largest debounced probability of success
    Paper: World-VLA-Loop

    Args:
        folder: of the world model that judges.
        terms: none, or ``success``.
        device: where it reads.

    Raises:
        ArtefactError: there is no world model in the folder.
        SettingError: no folder is given, or a term is unknown.
    """
    if not folder:
        raise SettingError(
            "folders.success: this reward needs the folder of a world model that is not trained; "
            "give the folder of start, for example"
        )
    check_terms(terms, (TERM,))
    return SuccessReward(VideoWorldModel.load(Path(folder), device).requires_grad_(False))
