"""Inverse dynamics: the robot's pose, or the actions, decoded from a video's frames.

As in EVA (arXiv 2603.17808): convolutions (worldrl's own, or a backbone of timm), spatial softmax, MLP::

    frames ─► encoder (keypoints and their features) ─► [t-1, t, t+1] ─► head ─► mean and deviation of each column

``window=1`` reads positions frame by frame; ``2`` (t, t+1) suits actions; ``3`` halves the noise. At a video's ends
the window repeats its first or last frame. The deviation is learned with the mean (Gaussian likelihood), then scaled
on held-out episodes.

Shapes legend: ``N`` videos, ``T`` frames, ``Y X`` pixels, ``W`` frames of a window, ``F`` features, ``D`` columns.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.core.storage.typed import from_plain
from worldrl.core.types import ImaginedVideos
from worldrl.nn.backbone import BackboneEncoder
from worldrl.nn.blocks import Mlp
from worldrl.nn.stored import StoredModule
from worldrl.nn.vision import ImageEncoder
from worldrl.rewards.config import OFFSETS, IdmConfig
from worldrl.rewards.motion.readout import Column

if TYPE_CHECKING:
    from worldrl.rewards.motion.basis import MotionBasis

IDM_FOLDER = "idm"  # its folder in a run directory of ``worldrl train-idm``
CONDITION = 16  # width of the encoder's condition, a learned constant: inverse dynamics has no instruction
LEAST_LOG, MOST_LOG = -6.0, 3.0  # range of the predicted logarithm of a standardised deviation


@dataclass(frozen=True)
class Decoded:
    """Mean and predicted standard deviation in the columns' units, float32 ``[N, T, D]`` each."""

    mean: Tensor
    std: Tensor


def make_encoder(config: IdmConfig) -> ImageEncoder | BackboneEncoder:
    """Make the encoder; MissingExtraError: a backbone without timm; SettingError: timm has no such one."""
    sizes = {"width": config.width, "keypoints": config.keypoints, "value_width": config.value_width}
    if config.backbone:
        return BackboneEncoder(CONDITION, name=config.backbone, stride=config.backbone_stride, **sizes)
    return ImageEncoder(CONDITION, blocks=config.blocks, place=True, **sizes)


class InverseDynamics(StoredModule):
    """Network from images ``frame_stride`` control steps apart to recorded columns, with uncertainty.

    ``basis``: constants of the motion rewards, None if its columns are no positions; ``begun``: of which weights its
    backbone began, None without one.
    """

    kind = "idm"
    mean: Tensor  # of each column in the training data, ``[D]``.
    deviation: Tensor  # standard deviation of each column there, ``[D]``.
    trust: Tensor  # factor on the predicted deviations, ``[D]``.

    def __init__(self, config: IdmConfig, columns: Sequence[Column], frame_stride: int = 1):
        super().__init__()
        self.config, self.columns, self.frame_stride = config, tuple(columns), frame_stride
        self.basis: MotionBasis | None = None
        self.begun: str | None = None
        self.condition = nn.Parameter(torch.randn(1, CONDITION))
        self.encoder = make_encoder(config)
        self.head = Mlp(config.window * self.encoder.out_width, config.hidden, 2 * len(columns))
        for name, fill in (("mean", 0.0), ("deviation", 1.0), ("trust", 1.0)):
            self.register_buffer(name, torch.full((len(columns),), fill))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.condition.device

    @property
    def offsets(self) -> tuple[int, ...]:
        """Frames of a window, relative to the frame that is read."""
        return OFFSETS[self.config.window]

    def standardised(self, value: Tensor) -> Tensor:
        """Columns ``[..., D]``, standardised by the training data."""
        return (value - self.mean) / self.deviation

    def features(self, frames: Tensor) -> Tensor:
        """Encode uint8 ``[B, Y, X, 3]`` to ``[B, F]``."""
        return self.encoder(frames, self.condition.expand(len(frames), -1))

    def read(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised mean and logarithm of the deviation, ``[B, D]`` each, of windows' features ``[B, W, F]``."""
        mean, log_std = self.head(features.flatten(1)).chunk(2, dim=-1)
        return mean, log_std.clamp(LEAST_LOG, MOST_LOG)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Read windows of frames uint8 ``[B, W, Y, X, 3]``; see :meth:`read`."""
        return self.read(self.features(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]))

    @torch.no_grad()
    def encode(self, frames: Tensor, *, batch: int = 256) -> Tensor:
        """Features of videos uint8 ``[N, T, Y, X, 3]``, ``[N, T, F]``."""
        parts = [self.features(part.to(self.device)) for part in frames.flatten(0, 1).split(batch)]
        return torch.cat(parts).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def decode(self, frames: Tensor, *, batch: int = 256) -> Decoded:
        """Mean and deviation ``[N, T, D]`` of videos uint8 ``[N, T, Y, X, 3]``, sides multiples of 8.

        Action columns of the last frame have no meaning. Raises SettingError: frames of another layout.
        """
        if frames.ndim != 5 or frames.shape[-1] != 3 or frames.dtype != torch.uint8:
            raise SettingError(f"decode: frames must be uint8 [N, T, Y, X, 3], got {frames.dtype} {frames.shape}")
        features, steps = self.encode(frames, batch=batch), torch.arange(frames.shape[1], device=self.device)
        windows = [features[:, (steps + offset).clamp(0, len(steps) - 1)] for offset in self.offsets]
        mean, log_std = self.read(torch.stack(windows, dim=2).flatten(0, 1))
        mean = self.mean + self.deviation * mean
        std = self.trust * self.deviation * log_std.exp()
        return Decoded(*(value.unflatten(0, frames.shape[:2]) for value in (mean, std)))

    def stored(self) -> dict[str, Any]:
        """Return the config of its folder, measured constants included."""
        return {
            "sizes": asdict(self.config),
            "columns": [column.to_json() for column in self.columns],
            "frame_stride": self.frame_stride,
            "basis": None if self.basis is None else self.basis.to_json(),
            "begun": self.begun,
        }

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of :meth:`stored`'s values, without its weights."""
        from worldrl.rewards.motion.basis import MotionBasis

        columns = [Column(**column) for column in stored["columns"]]
        idm = cls(from_plain(IdmConfig, stored["sizes"], where="sizes"), columns, stored["frame_stride"])
        idm.basis = None if stored["basis"] is None else MotionBasis.from_json(stored["basis"])
        idm.begun = stored.get("begun")  # absent in older folders
        return idm


def read_once(idm: InverseDynamics, videos: ImaginedVideos) -> Tensor:
    """Columns decoded from videos, float32 ``[N, T, D]`` on the CPU; stored with the videos for other rewards."""
    reader = next((known for known in videos.readings if reads_alike(known, idm)), idm)
    if reader not in videos.readings:
        videos.readings[reader] = idm.decode(videos.frames).mean.float().cpu()
    return videos.readings[reader]


def reads_alike(one: object, other: object) -> bool:
    """Whether both have the same weights: folders may differ in their parents, and decoding costs far more."""
    if one is other or not (isinstance(one, InverseDynamics) and isinstance(other, InverseDynamics)):
        return one is other
    if (one.config, one.device) != (other.config, other.device):
        return False
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
