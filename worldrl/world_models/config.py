"""Typed configuration of the video world model; it travels with the weights as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from worldrl.core.errors import SettingError


@dataclass
class CodecConfig:
    """Frame codec: square patches, linear layers and small attention blocks (matrix products suit a CPU).

    Attributes:
        image_size: pixels of a square frame.
        patch: pixels of a patch, also the spatial compression.
        channels: latent channels ``c``.
        width: token width.
        depth: blocks in the encoder and in the decoder.
        heads: attention heads.
        latent_noise: noise added to latents in training, so that decoding forgives small errors.
        salience: extra weight on pixels that differ from the batch's mean frame: a 9-pixel object must not drown
            in table.
    """

    image_size: int = 64
    patch: int = 8
    channels: int = 16
    width: int = 128
    depth: int = 3
    heads: int = 4
    latent_noise: float = 0.1
    salience: float = 8.0

    def __post_init__(self) -> None:
        """Reject sizes that do not divide."""
        if self.image_size % self.patch:
            raise SettingError(f"codec.patch must divide image_size {self.image_size}, got {self.patch}")
        if self.width % self.heads:
            raise SettingError(f"codec.heads must divide width {self.width}, got {self.heads}")


@dataclass
class DynamicsConfig:
    """Action-conditioned transformer over one chunk.

    Attributes:
        width: token width.
        depth: modulated blocks.
        heads: attention heads.
        chunk_length: control steps ``L`` per chunk, the policy's chunk.
        frame_stride: control steps per predicted frame.
        memory_frames: newest frames ``K`` the model sees, besides the episode's first one.
        memory_noise: largest noise level of the memory frames in training (uniform from 0).
        pure_noise_share: share of training rows at σ = 1.
        shift: schedule shift.
        sampling_steps: Euler steps of the sampler.
        motion_weight: extra loss weight on tokens that change within the chunk.
        reference: whether the first frame anchors the prediction (off only for ablations).
        action_modulation: whether actions modulate the blocks (off only for ablations).
        action_tokens: whether actions are attended to as tokens (off only for ablations).
        pose_map: whether tokens are told where each future gripper pose is in the picture.
    """

    width: int = 192
    depth: int = 6
    heads: int = 6
    chunk_length: int = 8
    frame_stride: int = 2
    memory_frames: int = 4
    memory_noise: float = 0.15
    pure_noise_share: float = 0.5
    shift: float = 1.0
    sampling_steps: int = 2
    motion_weight: float = 4.0
    reference: bool = True
    action_modulation: bool = True
    action_tokens: bool = True
    pose_map: bool = True

    def __post_init__(self) -> None:
        """Reject a chunk that does not hold whole frames."""
        if self.chunk_length % self.frame_stride:
            raise SettingError(
                f"dynamics.frame_stride must divide chunk_length {self.chunk_length}, got {self.frame_stride}"
            )
        if self.width % self.heads:
            raise SettingError(f"dynamics.heads must divide width {self.width}, got {self.heads}")
        if not (self.action_modulation or self.action_tokens):
            raise SettingError("dynamics needs action_modulation or action_tokens; both are off")

    @property
    def chunk_frames(self) -> int:
        """Predicted frames ``F`` per chunk."""
        return self.chunk_length // self.frame_stride


@dataclass
class SuccessHeadConfig:
    """Joint success head.

    Attributes:
        loss_weight: weight of its cross-entropy beside the flow loss.
        positive_weight: weight of frames of success; below 1 favours precision, since false success is what
            reinforcement learning exploits.
    """

    loss_weight: float = 0.1
    positive_weight: float = 1.0


@dataclass
class GripperHeadConfig:
    """Gripper head.

    Attributes:
        loss_weight: weight of its squared error (in units of 2 cm) beside the flow loss; 0 switches it off.
    """

    loss_weight: float = 0.3


@dataclass
class OutcomeHeadConfig:
    """Outcome head, and when its probability counts as success.

    Attributes:
        width: of its belief.
        threshold: probability from which a frame counts as success; calibrated on held-out rollouts.
        least_threshold: calibration never goes below this.
        debounce: consecutive frames over the threshold that make a success.
    """

    width: int = 128
    threshold: float = 0.7
    least_threshold: float = 0.5
    debounce: int = 2


@dataclass
class VideoWorldModelConfig:
    """Everything that shapes a :class:`~worldrl.world_models.video.VideoWorldModel`."""

    codec: CodecConfig = field(default_factory=CodecConfig)
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    success: SuccessHeadConfig = field(default_factory=SuccessHeadConfig)
    gripper: GripperHeadConfig = field(default_factory=GripperHeadConfig)
    outcome: OutcomeHeadConfig = field(default_factory=OutcomeHeadConfig)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> VideoWorldModelConfig:
        """Rebuild from :meth:`to_json`; unknown keys raise TypeError."""
        return cls(
            codec=CodecConfig(**data["codec"]),
            dynamics=DynamicsConfig(**data["dynamics"]),
            success=SuccessHeadConfig(**data["success"]),
            gripper=GripperHeadConfig(**data["gripper"]),
            outcome=OutcomeHeadConfig(**data["outcome"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
