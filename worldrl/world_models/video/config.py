"""Configuration of the video world model; it is stored with the weights as JSON."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from worldrl.core.errors import SettingError, nearest, require_at_least_one
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.observation import IMAGE, NOT_OBSERVED, OBSERVATION, check_inputs
from worldrl.core.renames import current_config
from worldrl.core.storage.typed import from_plain


@dataclass
class UNetConfig:
    """EDM U-Net; the defaults are DIAMOND's."""

    channels: int = 64  # of every level.
    levels: int = 4  # resolutions, each half of the previous one.
    blocks: int = 2  # residual blocks per level on the way down; one more on the way up.
    condition: int = 256  # width of the embedding of noise level and actions.
    heads: int = 8  # attention heads at the lowest resolution, and of the success and gripper head.
    # standard deviation of the latents; 0.5 for pixels in [-1, 1], about 1 for the patch codec's.
    sigma_data: float = 0.5
    offset_noise: float = 0.3  # standard deviation of the noise that all places of a channel share, in training.
    log_sigma_mean: float = -0.4  # mean of the training levels' logarithm.
    log_sigma_std: float = 1.2  # its standard deviation.
    sigma_low: float = 2e-3  # lowest level, in training and of the sampler.
    sigma_high: float = 20.0  # highest level in training.
    sigma_start: float = 5.0  # level at which sampling starts.
    rho: float = 7.0  # density of the sampler's levels at the lower end.
    sampling_steps: int = 3  # steps of the sampler for each frame.
    order: int = 1  # 1 for Euler's steps, 2 for Heun's: one more evaluation for every step but the last.

    def __post_init__(self) -> None:
        if self.channels > 32 and self.channels % 32:
            raise SettingError(f"dynamics.unet.channels above 32 must be a multiple of 32, got {self.channels}")
        if self.channels % self.heads:
            raise SettingError(f"dynamics.unet.heads must divide channels {self.channels}, got {self.heads}")
        for name in ("levels", "blocks", "sampling_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"dynamics.unet.{name} must be at least 1, got {getattr(self, name)}")
        if not (0 < self.sigma_low < self.sigma_start and self.sigma_low < self.sigma_high):
            raise SettingError(
                "dynamics.unet.sigma_low must be above 0 and below sigma_start and sigma_high, got "
                f"{self.sigma_low}, {self.sigma_start}, {self.sigma_high}"
            )
        if self.order not in (1, 2):
            raise SettingError(f"dynamics.unet.order must be 1 (Euler) or 2 (Heun), got {self.order}")


Kind = TypeVar("Kind", bound=StrEnum)


class CodecKind(StrEnum):
    """Latent of a frame; ``auto`` is the natural one of the dynamics."""

    auto = "auto"
    patch = "patch"
    identity = "identity"


class DynamicsKind(StrEnum):
    """Implementations of :class:`~worldrl.world_models.video.dynamics.Dynamics`."""

    flow_transformer = "flow_transformer"
    edm_unet = "edm_unet"


NATURAL_CODEC = {DynamicsKind.flow_transformer: CodecKind.patch, DynamicsKind.edm_unet: CodecKind.identity}


@dataclass
class CodecConfig:
    """Frame codec: square patches, linear layers and small attention blocks (matrix products suit a CPU).

    The identity codec uses ``image_size`` only.
    """

    # ``patch`` (latents), ``identity`` (pixels), or ``auto``: latents for the flow transformer, pixels for the U-Net.
    kind: CodecKind = CodecKind.auto
    image_size: int = 64  # pixels of a square frame.
    fit: Fit = Fit.refuse  # how recorded images of another size get this one; refuse is an error.
    patch: int = 8  # pixels of a patch, also the spatial compression.
    channels: int = 16  # latent channels ``c``.
    width: int = 128  # token width.
    depth: int = 3  # blocks in the encoder and in the decoder.
    heads: int = 4  # attention heads.
    latent_noise: float = 0.1  # noise added to latents in training, so that decoding tolerates small errors.
    # extra weight on pixels that differ from the batch's mean frame, so that small objects are not lost.
    salience: float = 8.0

    def __post_init__(self) -> None:
        self.kind = _kind("codec.kind", CodecKind, self.kind)
        self.fit = _kind("codec.fit", Fit, self.fit)
        if self.image_size % self.patch:
            raise SettingError(f"codec.patch must divide image_size {self.image_size}, got {self.patch}")
        if self.width % self.heads:
            raise SettingError(f"codec.heads must divide width {self.width}, got {self.heads}")

    @property
    def images(self) -> ImageFit:
        """Its images, and how others become them."""
        return ImageFit(self.image_size, self.fit)


@dataclass
class DynamicsConfig:
    """Action-conditioned prediction of one chunk.

    Both backends read the settings up to ``reference``; the others are the flow transformer's, ``unet`` the U-Net's.
    """

    # ``flow_transformer`` (all frames of a chunk at once, in latents) or ``edm_unet`` (DIAMOND: one frame after the
    # other, in pixels).
    kind: DynamicsKind = DynamicsKind.flow_transformer
    chunk_length: int = 8  # control steps ``L`` per chunk, the policy's chunk.
    frame_stride: int = 2  # control steps per predicted frame.
    memory_frames: int = 4  # newest frames ``K`` in the model's input, besides the episode's first one.
    memory_noise: float = 0.15  # largest noise level of the memory frames in training (uniform from 0).
    motion_weight: float = 4.0  # extra loss weight on places that change within the chunk.
    reference: bool = True  # whether the first frame anchors the prediction (off only for ablations).
    width: int = 192  # token width.
    depth: int = 6  # modulated blocks.
    heads: int = 6  # attention heads.
    pure_noise_share: float = 0.5  # share of training rows at σ = 1.
    shift: float = 1.0  # schedule shift.
    sampling_steps: int = 2  # Euler steps of the sampler.
    # whether the network takes the level that a step leads to (AnyFlow); ``training.flow_map_steps`` adds and trains it.
    flow_map: bool = False
    refinement_steps: int = 0  # refinement steps: a finished sample is made slightly noisy and denoised again.
    refinement_sigma: float = 0.02  # level of the last of them; the k-th of K has this to the power of k/K.
    refinement_share: float = 0.25  # share of training rows at those levels, if there are any.
    action_modulation: bool = True  # whether actions modulate the blocks (off only for ablations).
    action_tokens: bool = True  # whether actions are attended to as tokens (off only for ablations).
    pose_map: bool = True  # whether tokens get the place of each future gripper pose in the image.
    # whether the model also runs without actions, conditioned on the instruction instead (``imagine(state, None)``);
    # ``training.action_dropout`` trains this.
    planning: bool = False
    unet: UNetConfig = field(default_factory=UNetConfig)  # sizes and levels of the U-Net.

    def __post_init__(self) -> None:
        self.kind = _kind("dynamics.kind", DynamicsKind, self.kind)
        require_at_least_one(self, ("chunk_length", "frame_stride"), of="dynamics")
        if self.chunk_length % self.frame_stride:
            raise SettingError(
                f"dynamics.frame_stride must divide chunk_length {self.chunk_length}, got {self.frame_stride}"
            )
        if self.width % self.heads:
            raise SettingError(f"dynamics.heads must divide width {self.width}, got {self.heads}")
        if not (self.action_modulation or self.action_tokens):
            raise SettingError("dynamics needs action_modulation or action_tokens; both are off")
        self._check_refinement()
        if self.kind is DynamicsKind.edm_unet:
            self._refuse_flow_switches()

    def _check_refinement(self) -> None:
        if self.refinement_steps < 0:
            raise SettingError(f"dynamics.refinement_steps must be zero or more, got {self.refinement_steps}")
        if not 0 < self.refinement_sigma < 1:
            raise SettingError(f"dynamics.refinement_sigma must be in (0, 1), got {self.refinement_sigma}")
        if not 0 <= self.refinement_share <= 1:
            raise SettingError(f"dynamics.refinement_share must be in [0, 1], got {self.refinement_share}")

    def _refuse_flow_switches(self) -> None:
        off = [name for name in ("action_modulation", "action_tokens", "pose_map") if not getattr(self, name)]
        off += [name for name in ("refinement_steps", "planning", "flow_map") if getattr(self, name)]
        if off:
            raise SettingError(f"dynamics.{off[0]} is the flow transformer's; keep its default with kind=edm_unet")

    @property
    def chunk_frames(self) -> int:
        """Predicted frames ``F`` per chunk."""
        return self.chunk_length // self.frame_stride


@dataclass
class SuccessHeadConfig:
    """Joint success head."""

    loss_weight: float = 0.1  # weight of its cross-entropy beside the flow loss.
    # weight of frames of success; below 1 favours precision, since reinforcement learning exploits false success.
    positive_weight: float = 1.0
    # how much less a frame weighs in pure noise than in none; 0 weighs all levels alike, 1 leaves pure noise out.
    noise_weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.noise_weight <= 1:
            raise SettingError(f"success.noise_weight must be in [0, 1], got {self.noise_weight}")


@dataclass
class GripperHeadConfig:
    """Gripper head."""

    loss_weight: float = 0.3  # weight of its squared error (in units of 2 cm) beside the flow loss; 0 switches it off.


@dataclass
class StateHeadConfig:
    """State head, of models with ``state=measured``, and pose head, of robots whose command is the measured pose."""

    loss_weight: float = 0.05  # weight of its negative log-likelihood (nats per number) beside the flow loss.


CONDITIONINGS = ("actions", "instruction")  # conditions of a video


@dataclass
class OutcomeHeadConfig:
    """Outcome head, and when its probability counts as success."""

    width: int = 128  # of a member's recurrent state.
    # members of the outcome ensemble; their mean probability counts, their spread is the uncertainty.
    ensemble_size: int = 1
    threshold: float = 0.7  # probability from which a frame counts as success; calibrated on held-out rollouts.
    min_threshold: float = 0.5  # lower limit of the calibration.
    debounce: int = 2  # consecutive frames over the threshold that make a success.
    # input beside the frames: ``actions`` (to improve a policy in imagination), or ``instruction`` (to rate planned
    # videos, which have no actions).
    conditioning: str = "actions"

    def __post_init__(self) -> None:
        if self.conditioning not in CONDITIONINGS:
            raise SettingError(
                f"outcome.conditioning: unknown value {self.conditioning!r}{nearest(self.conditioning, CONDITIONINGS)}"
            )
        require_at_least_one(self, ("ensemble_size", "width"), of="outcome")


@dataclass
class RestorerConfig:
    """Frame restorer of decoded images."""

    width: int = 0  # channels; 0 shows the codec's images.
    block: int = 2  # pixels of a square that the convolutions treat as one place.
    depth: int = 3  # residual convolutions.

    def __post_init__(self) -> None:
        if self.width < 0 or self.block < 1 or self.depth < 0:
            raise SettingError(
                f"restorer needs width and depth of 0 or more and block of 1 or more, got width={self.width}, "
                f"block={self.block}, depth={self.depth}"
            )


@dataclass
class VideoWorldModelConfig:
    """Sizes of a :class:`~worldrl.world_models.video.model.VideoWorldModel`."""

    codec: CodecConfig = field(default_factory=CodecConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    success: SuccessHeadConfig = field(default_factory=SuccessHeadConfig)
    gripper: GripperHeadConfig = field(default_factory=GripperHeadConfig)
    outcome: OutcomeHeadConfig = field(default_factory=OutcomeHeadConfig)
    restorer: RestorerConfig = field(default_factory=RestorerConfig)
    # images that it imagines together, ``image`` (the main camera's) first, then for example ``wrist_image``.
    cameras: list[str] = field(default_factory=lambda: [IMAGE])
    state: str = NOT_OBSERVED  # ``measured`` also predicts the measured state; ``none`` does not.
    state_head: StateHeadConfig = field(default_factory=StateHeadConfig)

    def __post_init__(self) -> None:
        check_inputs(self.cameras, self.state, "model.")
        halvings = 2 ** (self.dynamics.unet.levels - 1)
        if self.dynamics.kind is DynamicsKind.edm_unet and self.latent_size % halvings:
            raise SettingError(
                f"dynamics.unet.levels {self.dynamics.unet.levels} needs latents whose side {halvings} divides, "
                f"got {self.latent_size}; use fewer levels"
            )
        if self.restorer.width and self.codec.image_size % self.restorer.block:
            raise SettingError(
                f"restorer.block must divide image_size {self.codec.image_size}, got {self.restorer.block}"
            )

    @property
    def codec_kind(self) -> CodecKind:
        """The codec, never ``auto``."""
        return NATURAL_CODEC[self.dynamics.kind] if self.codec.kind is CodecKind.auto else self.codec.kind

    @property
    def latent_size(self) -> int:
        """Side of a latent frame."""
        return self.codec.image_size // (self.codec.patch if self.codec_kind is CodecKind.patch else 1)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "VideoWorldModelConfig":
        """Rebuild from :meth:`to_json`; absent keys take their defaults; SettingError: unknown or out of range."""
        own = {name: part for name, part in current_config(data).items() if name not in ("embodiment", OBSERVATION)}
        return from_plain(cls, own, where="config")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def _kind(name: str, kinds: type[Kind], value: str) -> Kind:
    try:
        return kinds(value)
    except ValueError:
        raise SettingError(
            f"{name}: unknown value {value!r}{nearest(str(value), [kind.value for kind in kinds])}"
        ) from None
