"""Settings of the sampler of a saved world model, for a measurement or permanently."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError
from worldrl.settings import non_negative, positive, setting
from worldrl.world_models.video.config import DynamicsConfig, DynamicsKind, UNetConfig
from worldrl.world_models.wan.config import WanDynamicsConfig


@dataclass
class Sampler:
    """Sampler of the dynamics; null keeps the saved value."""

    steps: int | None = setting(None, "steps of the dynamics' sampler; null: those the model was saved with")
    refinement_steps: int | None = setting(
        None, "refinement steps, each with slight noise and denoising; null: as saved"
    )

    def __post_init__(self) -> None:
        if self.steps is not None:
            positive("sampler.steps", self.steps)
        if self.refinement_steps is not None:
            non_negative("sampler.refinement_steps", self.refinement_steps)

    def apply(self, config: DynamicsConfig | WanDynamicsConfig) -> None:
        """Change a loaded model's configuration in place; SettingError for refinement of the U-Net or of Wan."""
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
    """Part of the configuration that holds the sampler's steps."""
    return config.unet if isinstance(config, DynamicsConfig) and config.kind is DynamicsKind.edm_unet else config


def sampled(config: DynamicsConfig | WanDynamicsConfig) -> dict[str, int]:
    """Sampler of a model, for ``result.json``."""
    refinement = config.refinement_steps if isinstance(config, DynamicsConfig) else 0
    return {"steps": stepper(config).sampling_steps, "refinement_steps": refinement}
