"""A position probe: reads the positions of gripper and objects in an image, in metres.

Pixel error hardly measures a cube of nine pixels. The probe is trained on *real* frames of other episodes than the evaluated ones,
and of random scenes, with the simulator's positions. Then it reads imagined frames. Its error there contains its own error, so its
error on real frames of the evaluated episodes is reported beside it.

It reads sights (``rollout.camera``): the image coordinates of a point, and its height. Each point has a keypoint: the cells vote for
its place with corrections (``nn.vision``), which resolves less than a cell. Objects on the table have one height, so the pixel is
enough. The height of the hand and of a held object is ambiguous: five centimetres along the line of sight change the gripper by less
than a pixel. The error across the line of sight is therefore reported separately.

Shapes legend: ``N`` frames, ``P`` points (of all tasks), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.evaluation.world_model.probe_frames import CENTIMETRES, ProbeFrames, shifted, softened
from worldrl.nn.blocks import Mlp
from worldrl.nn.vision import ImageEncoder, colour_jitter

Key = tuple[str, int, int, int]
"""Identity of an episode: ``EpisodeSpec.key``."""
KIND = "position-probe"
TASK_WIDTH = 16
KNEE = 0.2
"""Error (cm) beyond which the loss is linear, so that ambiguous heights do not dominate the millimetres."""


@dataclass
class ProbeSettings:
    """The probe and its training."""

    episodes: int = 100  # other episodes per task at most that are executed again to train it.
    horizon: int = 128  # control steps of each, continued like the evaluated ones.
    every: int = 2  # control steps between training frames.
    scattered: int = 4000  # random scenes per task, also training data.
    steps: int = 2500  # of its training; 0 trains none, and no position error is computed.
    batch: int = 64  # frames per step.
    learning_rate: float = 2e-3  # peak, warm-up cosine.
    weight_decay: float = 0.01  # AdamW.
    shift: float = 0.0  # largest shift of its training images, as a fraction of their width.
    jitter: float = 0.1  # strength of the colour jitter, since imagined colours are inexact.
    blur: float = 0.7  # largest share of a 3×3 mean in its training images, since imagined ones are blurred.
    width: int = 32  # channels of the image encoder.
    blocks: int = 2  # residual blocks.
    keypoints: int = 12  # further keypoints beside the points.
    hidden: int = 256  # width of the last layer, which predicts heights and corrections.
    checkpoint_every: int = 500  # steps between checkpoints.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("episodes", "horizon", "every", "batch"), of="probe")
        for name in ("scattered", "steps", "weight_decay", "jitter"):
            if getattr(self, name) < 0:
                raise SettingError(f"probe.{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 <= self.shift < 0.5:
            raise SettingError(f"probe.shift must be in [0, 0.5), got {self.shift}")
        if not 0 <= self.blur <= 1:
            raise SettingError(f"probe.blur must be in [0, 1], got {self.blur}")


class Reader(Protocol):
    """Reads sights from images."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ``P`` points."""
        ...

    def read(self, frames: NDArray[np.uint8], task: str) -> NDArray[np.float32]:
        """Sights ``[N, P, 3]`` in frames ``[N, Y, X, 3]`` of a task; meaningless for points that it lacks."""
        ...


class PositionProbe(nn.Module):
    """A task-conditioned image encoder with a keypoint per point, and a small head for heights and corrections.

    ``names`` are the points; ``learned`` the initial states of its training episodes, which it must not evaluate.
    """

    def __init__(
        self, config: ProbeSettings, tasks: Sequence[str], names: Sequence[str], learned: Iterable[Key] = ()
    ) -> None:
        super().__init__()
        self.config, self.tasks, self.names = config, tuple(tasks), tuple(names)
        self.learned = frozenset(learned)
        self.task = nn.Embedding(len(tasks), TASK_WIDTH)
        keypoints = len(names) + config.keypoints
        self.encoder = ImageEncoder(TASK_WIDTH, width=config.width, blocks=config.blocks, keypoints=keypoints)
        self.vote = nn.Linear(self.encoder.value_width, 2)
        self.head = Mlp(self.encoder.out_width, config.hidden, 3 * len(names))
        self.register_buffer("mean", torch.zeros(len(names), 3))
        self.register_buffer("deviation", torch.ones(len(names), 3))
        # Training starts from the votes alone: the head's corrections are 0.
        for parameter in self.head[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, frame: Tensor, task: Tensor) -> Tensor:
        """Map uint8 ``[N, Y, X, 3]`` and task numbers ``[N]`` to sights ``[N, P, 3]``."""
        found = self.encoder(frame, self.task(task))
        count, points = self.encoder.keypoints, len(self.names)
        place = found[:, : 2 * count].unflatten(1, (count, 2))[:, :points]
        value = found[:, 2 * count :].unflatten(1, (count, -1))[:, :points]
        # The mean of the cells' votes: the vote is linear, so it is the vote of their mean.
        voted = place + self.vote(value)
        height = self.get_buffer("mean")[:, 2:].expand(len(frame), -1, -1)
        correction = self.head(found).unflatten(1, (-1, 3))
        return torch.cat([voted, height], dim=2) + self.get_buffer("deviation") * correction

    @torch.no_grad()
    def read(self, frames: NDArray[np.uint8], task: str, *, batch: int = 256) -> NDArray[np.float32]:
        """Read sights as :class:`Reader`; SettingError where it was not trained on that task."""
        device = self.get_buffer("mean").device
        number = torch.tensor([self.number(task)], device=device)
        parts = torch.from_numpy(frames).split(batch)
        read = [self(part.to(device), number.expand(len(part))).cpu() for part in parts]
        return torch.cat(read).numpy()

    def number(self, task: str) -> int:
        """A task's number; SettingError where it was not trained on it."""
        if task not in self.tasks:
            raise SettingError(f"probe: was trained on {', '.join(self.tasks)}, not on {task}; record episodes of it")
        return self.tasks.index(task)

    def save(self, folder: Path) -> None:
        """Write an artefact folder."""
        learned = sorted(map(list, self.learned))
        config = {"sizes": asdict(self.config), "tasks": self.tasks, "names": self.names, "learned": learned}
        write_artefact(folder, kind=KIND, config=config, tensors=self.state_dict())

    @classmethod
    def load(cls, folder: Path, device: torch.device | str) -> PositionProbe:
        """Read the folder of :meth:`save`; ArtefactError where it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=KIND)
        with fitting(artefact):
            config = artefact.config
            learned = {(task, index, state, seed) for task, index, state, seed in config["learned"]}
            probe = cls(ProbeSettings(**config["sizes"]), config["tasks"], config["names"], learned)
            load_weights(probe, artefact)
        return probe.to(device).eval()


def new_probe(config: ProbeSettings, frames: ProbeFrames, *, seed: int, learned: Iterable[Key] = ()) -> PositionProbe:
    """Make an untrained probe: it predicts each point's mean height, somewhere in the image."""
    with initial_weights(seed, "probe"):
        probe = PositionProbe(config, frames.tasks, frames.names, learned)
    count = np.isfinite(frames.sight).sum(axis=0).clip(1)
    mean = np.nansum(frames.sight, axis=0) / count
    variance = np.nansum(np.square(frames.sight - mean), axis=0) / count
    probe.get_buffer("mean").copy_(torch.from_numpy(mean))
    # Constant coordinates need a deviation above 0.
    probe.get_buffer("deviation").copy_(torch.from_numpy(np.sqrt(variance)).clamp_min(1e-3))
    return probe


def probe_loss(read: Tensor, true: Tensor, half_width: float) -> Tensor:
    """Huber loss of sights ``[N, P, 3]`` in centimetres (linear beyond ``KNEE``) over existing points; ``half_width`` maps u and v to metres."""
    exists = torch.isfinite(true)
    unit = CENTIMETRES * true.new_tensor([half_width, half_width, 1.0])
    target = torch.where(exists, true, read.detach())
    loss = F.smooth_l1_loss(unit * read, unit * target, reduction="none", beta=KNEE)
    return loss.sum() / exists.sum().clamp_min(1)


def fit_probe(
    probe: PositionProbe, frames: ProbeFrames, *, seed: int, folder: Path | None, log: MetricLog | None
) -> FitReport:
    """Train in place on frames held in memory."""
    config, device = probe.config, probe.get_buffer("mean").device

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = stream(seed, "probe", step)
        rows = torch.randint(len(frames.frame), (config.batch,), generator=generator).numpy()
        frame, true = (torch.from_numpy(part[rows]).to(device) for part in (frames.frame, frames.sight))
        frame, true = shifted(frame, true, config.shift, generator)
        frame = colour_jitter(softened(frame, config.blur, generator), strength=config.jitter, generator=generator)
        read = probe(frame, torch.from_numpy(frames.task[rows]).to(device))
        return probe_loss(read, true, frames.half_width), {}

    return fit_module(
        "probe",
        probe,
        loss,
        part="probe",
        optimizer=adamw(probe, config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=100,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
    )
