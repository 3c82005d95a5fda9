"""Settings of the networks that read frames: inverse dynamics, and inverse dynamics of the grasp."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.training.ranks import DeviceSettings

OFFSETS = {1: (0,), 2: (0, 1), 3: (-1, 0, 1)}  # frames of each window, relative to the frame that is read


@dataclass
class IdmConfig:
    """Sizes of an inverse dynamics."""

    window: int = 1  # frames of the head's input: 1, 2 (this and the next) or 3 (one on either side).
    width: int = 48  # channels of the image encoder.
    blocks: int = 2  # residual blocks of the image encoder.
    keypoints: int = 24  # keypoints of the image encoder.
    value_width: int = 16  # features read at each keypoint.
    hidden: int = 256  # width of the head's hidden layer.
    # a convolutional model of timm (extra ``timm``) as encoder, for example ``resnet50``; empty takes worldrl's own
    # convolutions.
    backbone: str = ""
    backbone_stride: int = 8  # pixels per cell of its finest level that is read; coarser ones are added to it.

    def __post_init__(self) -> None:
        if self.window not in OFFSETS:
            raise SettingError(f"model.window must be one of {sorted(OFFSETS)}, got {self.window}")
        require_at_least_one(
            self, ("width", "blocks", "keypoints", "value_width", "hidden", "backbone_stride"), of="model"
        )


@dataclass
class IdmTraining(DeviceSettings):
    """Settings of :func:`fit_idm`."""

    steps: int = 3000  # gradient steps.
    batch: int = 64  # windows per step.
    learning_rate: float = 1e-3  # peak, warm-up cosine.
    weight_decay: float = 0.01  # AdamW.
    beta: float = 0.5  # of the β-NLL, in [0, 1].
    jitter: float = 0.05  # strength of the colour jitter, since imagined colours are inexact.
    codec_share: float = 0.5  # share of the windows decoded by the codec of ``world_model``; needs one.
    checkpoint_every: int = 500  # steps between checkpoints.
    # ``.safetensors`` file of timm's for ``model.backbone``; empty begins at random. Nothing is downloaded.
    backbone_weights: str = ""
    # number type of the encoder's convolutions in training: ``float32``, ``bfloat16``, or ``auto``: bfloat16 where the
    # device has units for it. Reading is float32.
    dtype: str = "auto"

    def __post_init__(self) -> None:
        require_at_least_one(self, ("steps", "batch"), of="training")
        for name in ("beta", "codec_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"training.{name} must be in [0, 1], got {getattr(self, name)}")
        if self.jitter < 0:
            raise SettingError(f"training.jitter must be 0 or more, got {self.jitter}")


@dataclass
class GraspConfig:
    """Sizes and training of a :class:`GraspDynamics`."""

    width: int = 32  # channels of the image encoder.
    blocks: int = 2  # residual blocks of the image encoder.
    keypoints: int = 16  # keypoints of the image encoder.
    text_width: int = 32  # size of the instruction vector.
    hidden: int = 128  # width of the head's hidden layer.
    steps: int = 0  # training steps; 0 trains none in ``train-idm``.
    batch: int = 48  # frames per step.
    learning_rate: float = 2e-3  # peak, warm-up cosine.
    weight_decay: float = 0.01  # AdamW.
    jitter: float = 0.05  # strength of the colour jitter.
    # share of the frames that are their episode's first; the others are any before the closing.
    first_share: float = 0.5
    # of the averaged weights that training ends with; recorded closings are noisy and would be overfitted.
    ema_decay: float = 0.995
    checkpoint_every: int = 500  # steps between checkpoints.

    def __post_init__(self) -> None:
        counts = ("width", "blocks", "keypoints", "text_width", "hidden", "batch", "checkpoint_every")
        require_at_least_one(self, counts, of="grasp")
        if self.steps < 0:
            raise SettingError(f"grasp.steps must be 0 or more, got {self.steps}")
        if not 0 <= self.first_share <= 1:
            raise SettingError(f"grasp.first_share must be in [0, 1], got {self.first_share}")
        if not 0 <= self.ema_decay < 1:
            raise SettingError(f"grasp.ema_decay must be in [0, 1), got {self.ema_decay}")
