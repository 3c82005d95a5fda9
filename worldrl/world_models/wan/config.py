"""Typed configuration of the Wan-class world model; it travels with the weights as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from worldrl.core.errors import SettingError, one_of, require_at_least_one
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.observation import IMAGE, NOT_OBSERVED, OBSERVATION, check_inputs
from worldrl.core.renames import current_config
from worldrl.core.storage.typed import from_plain
from worldrl.world_models.video.config import StateHeadConfig, SuccessHeadConfig

KIND = "wan-world-model"
GROUP = 4  # frames per latent frame after the first: Wan's autoencoder takes one frame alone, then groups of four

ADAPTERS = ("lora", "full")


@dataclass
class WanCodecConfig:
    """Use of Wan's autoencoder, which is never trained here."""

    image_size: int = 256  # pixels of a square frame, those of the dataset.
    fit: Fit = Fit.refuse  # how recorded images of another size get this one; refuse is an error.
    dtype: str = "float32"  # number type it computes in; its authors recommend float32.
    rows: int = 8  # clips per pass, which bounds its memory.

    def __post_init__(self) -> None:
        one_of("codec.dtype", self.dtype, ("float32", "bfloat16"))
        if self.rows < 1:
            raise SettingError(f"codec.rows must be at least 1, got {self.rows}")

    @property
    def images(self) -> ImageFit:
        """Its images, and how others become them."""
        return ImageFit(self.image_size, self.fit)


@dataclass
class WanDynamicsConfig:
    """Layout of a clip, its actions, its noise, and what of the transformer is trained."""

    chunk_length: int = 8  # control steps ``L`` per chunk, the policy's chunk.
    frame_stride: int = 1  # control steps per predicted frame.
    memory_frames: int = 4  # newest frames ``K`` the model sees, besides the episode's first one; a multiple of 4.
    # noise level of the memory latents in training, which the model does not see; WoVR's is the base level 0.05 after
    # its shift of 5.
    memory_noise: float = 0.208
    # whether the episode's first frame begins the clip; off (only for ablations), the oldest frame of the memory stands
    # in its place.
    reference: bool = True
    shift: float = 5.0  # schedule shift, in training and sampling.
    sampling_steps: int = 5  # Euler steps of the sampler.
    pure_noise_share: float = 0.0  # share of training rows at σ = 1.
    bell_weight: bool = True  # whether the loss is weighted by WoVR's bell over noise levels, which is 0 at σ = 1.
    # whether actions are attended to as tokens, WoVR's global channel (off only for ablations).
    action_tokens: bool = True
    action_modulation: bool = True  # whether actions modulate the blocks, its local channel (off only for ablations).
    adapter: str = "lora"  # what of the published transformer is trained: lora (low-rank additions only) or full.
    lora_rank: int = 32  # rank of the additions.
    lora_alpha: float = 32.0  # their scale is ``lora_alpha / lora_rank``.
    # number type in which published weights that are not trained are kept: float32, or bfloat16 for half the memory.
    base_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.chunk_length % (self.frame_stride * GROUP):
            raise SettingError(
                f"dynamics.chunk_length must hold whole groups of {GROUP} frames of {self.frame_stride} steps (one latent "
                f"frame), got {self.chunk_length}; take a multiple of {self.frame_stride * GROUP}"
            )
        if self.memory_frames < GROUP or self.memory_frames % GROUP:
            raise SettingError(f"dynamics.memory_frames must be a multiple of {GROUP}, got {self.memory_frames}")
        if not 0 <= self.memory_noise < 1:
            raise SettingError(f"dynamics.memory_noise must be in [0, 1), got {self.memory_noise}")
        if not 0 <= self.pure_noise_share <= 1:
            raise SettingError(f"dynamics.pure_noise_share must be in [0, 1], got {self.pure_noise_share}")
        if not (self.action_modulation or self.action_tokens):
            raise SettingError("dynamics needs action_modulation or action_tokens; both are off")
        one_of("dynamics.adapter", self.adapter, ADAPTERS)
        one_of("dynamics.base_dtype", self.base_dtype, ("float32", "bfloat16"))
        if self.adapter == "full" and self.base_dtype != "float32":
            raise SettingError(
                "dynamics.base_dtype must be float32 with adapter=full: what is trained keeps all its bits"
            )

    @property
    def chunk_frames(self) -> int:
        """Predicted frames ``F`` per chunk."""
        return self.chunk_length // self.frame_stride

    @property
    def context_latents(self) -> int:
        """Latent frames that are given: the reference, then the memory."""
        return 1 + self.memory_frames // GROUP

    @property
    def future_latents(self) -> int:
        """Latent frames that are predicted."""
        return self.chunk_frames // GROUP

    @property
    def group_actions(self) -> int:
        """Actions behind one latent frame."""
        return GROUP * self.frame_stride

    @property
    def memory_actions(self) -> int:
        """Actions behind the memory frames."""
        return self.memory_frames * self.frame_stride

    @property
    def clip_actions(self) -> int:
        """Actions of a clip: the null action of the reference, then those of memory and future."""
        return 1 + self.memory_actions + self.chunk_length


@dataclass
class WanSuccessConfig(SuccessHeadConfig):
    """Joint success head on the transformer's features.

    Attributes:
        loss_weight: weight of its cross-entropy beside the flow loss.
        positive_weight: weight of frames of success; below 1 favours precision.
        noise_weight: how much less a frame weighs in pure noise than in none.
    """

    width: int = 512  # to which the features are projected first.
    heads: int = 8  # attention heads.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SettingError(f"success.heads must divide width {self.width}, got {self.heads}")


@dataclass
class WanOutcomeConfig:
    """What predicts the outcome of a whole rollout, and when the probability counts as success."""

    # outcome heads in the ensemble, which reads the features of the success head; with 0, its own probability counts.
    ensemble_size: int = 0
    width: int = 128  # of a member's recurrent state.
    threshold: float = 0.7  # probability from which a frame counts; calibrated on held-out rollouts.
    min_threshold: float = 0.5  # calibration never goes below this.
    debounce: int = 2  # consecutive frames over the threshold that make a success.

    def __post_init__(self) -> None:
        if self.ensemble_size < 0:
            raise SettingError(
                f"outcome.ensemble_size must not be negative, got {self.ensemble_size}; 0 is no outcome head"
            )
        require_at_least_one(self, ("width",), of="outcome")


@dataclass
class WanConfig:
    """Everything that shapes a :class:`~worldrl.world_models.wan.model.WanWorldModel`, besides the published folder."""

    codec: WanCodecConfig = field(default_factory=WanCodecConfig)
    dynamics: WanDynamicsConfig = field(default_factory=WanDynamicsConfig)
    success: WanSuccessConfig = field(default_factory=WanSuccessConfig)
    outcome: WanOutcomeConfig = field(default_factory=WanOutcomeConfig)
    # images that it imagines together, ``image`` (the main camera's) first, then for example ``wrist_image``.
    cameras: list[str] = field(default_factory=lambda: [IMAGE])
    state: str = NOT_OBSERVED  # ``measured`` also predicts the measured state; ``none`` does not.
    state_head: StateHeadConfig = field(default_factory=StateHeadConfig)

    def __post_init__(self) -> None:
        check_inputs(self.cameras, self.state, "wan.model.")

    @property
    def sheet(self) -> tuple[int, int, int]:
        """Shape of a frame: the views of all cameras below each other."""
        return len(self.cameras) * self.codec.image_size, self.codec.image_size, 3

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WanConfig":
        """Rebuild from :meth:`to_json`; younger keys take their defaults; SettingError: unknown or out of range."""
        own = {
            name: part for name, part in current_config(data).items() if name not in ("embodiment", "base", OBSERVATION)
        }
        return from_plain(cls, own, where="config")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
