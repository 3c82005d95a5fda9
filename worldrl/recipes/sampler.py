"""Settings that sample a saved world model otherwise than it was saved: in a measurement, or from now on."""

from __future__ import annotations

from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.settings import non_negative, positive, setting
from worldrl.world_models.video.config import DynamicsConfig, DynamicsKind
from worldrl.world_models.video.unet_config import UNetConfig
from worldrl.world_models.wan.config import WanDynamicsConfig


@dataclass
class Sampler:
    """Of the dynamics; null leaves what the model was saved with.

    Attributes:
        steps: of the sampler for each chunk (each frame with the U-Net).
        refinement_steps: refinement steps: a finished sample is made slightly noisy and denoised again (flow transformer).
    """

    steps: int | None = setting(None, "steps of the dynamics' sampler; null: those the model was saved with")
    refinement_steps: int | None = setting(
        None, "refinement steps, each with slight noise and denoising; null: as saved"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.steps is not None:
            positive("sampler.steps", self.steps)
        if self.refinement_steps is not None:
            non_negative("sampler.refinement_steps", self.refinement_steps)

    def apply(self, config: DynamicsConfig | WanDynamicsConfig) -> None:
        """Change a loaded model's configuration in place.

        Raises:
            SettingError: refinement of the U-Net or of Wan, which have none.
        """
        if self.steps is not None:
            stepper(config).sampling_steps = self.steps
        if self.refinement_steps is not None:
            if isinstance(config, WanDynamicsConfig):
                raise SettingError(
                    "sampler.refinement_steps is the flow transformer's; leave it null for a Wan world model"
                )
            config.refinement_steps = self.refinement_steps
            config.__post_init__()


def stepper(config: DynamicsConfig | WanDynamicsConfig) -> DynamicsConfig | UNetConfig | WanDynamicsConfig:
    """Return the part of the configuration that says how many steps the sampler takes."""
    return config.unet if isinstance(config, DynamicsConfig) and config.kind is DynamicsKind.edm_unet else config


def sampled(config: DynamicsConfig | WanDynamicsConfig) -> dict[str, int]:
    """Say how a model is sampled, for ``result.json``."""
    refinement = config.refinement_steps if isinstance(config, DynamicsConfig) else 0
    return {"steps": stepper(config).sampling_steps, "refinement_steps": refinement}
