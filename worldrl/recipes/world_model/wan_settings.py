"""Settings of the Wan backbone, under ``wan`` in every job that trains a world model."""

from dataclasses import dataclass, field

from worldrl.settings import setting
from worldrl.world_models.wan.config import WanConfig
from worldrl.world_models.wan.training import WanTraining


@dataclass
class WanSettings:
    """Which published weights, how a clip is laid out, and how it is learned."""

    folder: str = setting("", "published Wan weights in diffusers' layout, downloaded beforehand (docs/guide/wan.md)")
    model: WanConfig = field(default_factory=WanConfig)
    training: WanTraining = field(default_factory=WanTraining)
