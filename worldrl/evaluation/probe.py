"""A position probe: where are gripper and objects in a picture, in metres?

Pixel error hardly sees a cube of nine pixels. The probe is trained on *real* frames of other episodes than those that
are evaluated, with the simulator's own positions, and then reads imagined frames. Its error there is the world model's
and its own together, so its error on real frames of the evaluated episodes always stands beside it.

It reads sights (``rollout.camera``): where the picture shows a point, and how deep. In training, pictures are shifted and
their sights with them, without which it learns the few layouts it sees by heart. Depth it can only guess: a long lens
shows a gripper five centimetres nearer not one pixel wider. So the error across the line of sight is told apart.

Shapes legend: ``N`` frames, ``P`` points (all that any task has), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from worldrl.core.artefact import read_artefact, write_artefact
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.fit import FitReport, fit_module
from worldrl.core.log import MetricLog
from worldrl.core.optimizer import adamw
from worldrl.core.rng import initial_weights, stream
from worldrl.nn.blocks import Mlp
from worldrl.nn.vision import ImageEncoder, colour_jitter, shift
from worldrl.rollout.true_runs import TrueRun

KIND = "position-probe"
TASK_WIDTH = 16
CENTIMETRES = 100.0
FALLEN = -0.05
"""Height (m) below which an object has fallen off the table, out of the picture."""


@dataclass
class ProbeSettings:
    """The probe and its training.

    Attributes:
        episodes: other episodes per task at most that are executed again to train it.
        horizon: control steps of each, continued like the evaluated ones.
        every: control steps between the frames that it learns from.
        steps: of its training; 0 trains none, and no position error is computed.
        batch: frames per step.
        learning_rate: peak, warm-up cosine.
        weight_decay: AdamW.
        shift: largest shift of its training pictures, as a fraction of their width.
        jitter: strength of the colour jitter, since imagined colours are a little off.
        width: channels of the image encoder.
        blocks: residual blocks.
        keypoints: places it looks for.
        hidden: width of the layer that turns them into sights.
        checkpoint_every: steps between checkpoints.
    """

    episodes: int = 100
    horizon: int = 128
    every: int = 2
    steps: int = 2000
    batch: int = 96
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    shift: float = 0.1
    jitter: float = 0.1
    width: int = 48
    blocks: int = 2
    keypoints: int = 24
    hidden: int = 256
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        """Check the ranges that the rooms below do not check."""
        for name in ("episodes", "horizon", "every", "batch"):
            if getattr(self, name) < 1:
                raise SettingError(f"probe.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("steps", "weight_decay", "jitter"):
            if getattr(self, name) < 0:
                raise SettingError(f"probe.{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 <= self.shift < 0.5:
            raise SettingError(f"probe.shift must lie in [0, 0.5), got {self.shift}")


class Reader(Protocol):
    """Whoever reads sights from pictures."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ``P`` points."""
        ...

    def read(self, frames: NDArray[np.uint8], task: str) -> NDArray[np.float32]:
        """Sights ``[N, P, 3]`` in frames ``[N, Y, X, 3]`` of a task; meaningless for points that it lacks."""
        ...


@dataclass(frozen=True)
class ProbeFrames:
    """Frames with known sights.

    Attributes:
        tasks: names, in the order of their numbers.
        names: of the points.
        frame: uint8 ``[N, Y, X, 3]``.
        task: int64 ``[N]``, number of each frame's task.
        sight: float32 ``[N, P, 3]``; NaN where a point is not in the scene or fell off the table.
        half_width: half the picture's width at the points' mean depth (m).
    """

    tasks: tuple[str, ...]
    names: tuple[str, ...]
    frame: NDArray[np.uint8]
    task: NDArray[np.int64]
    sight: NDArray[np.float32]
    half_width: float

    @classmethod
    def of(cls, runs: Sequence[TrueRun], every: int) -> ProbeFrames:
        """Take every ``every``-th frame of some runs."""
        tasks = tuple(sorted({run.episode.task for run in runs}))
        names = tuple(dict.fromkeys(name for run in runs for name in run.names))
        frames = [run.episode.frames[::every, 0] for run in runs]
        numbers = np.array([tasks.index(run.episode.task) for run in runs])
        sight = np.concatenate([run.camera.project(spread(run, names)[::every]) for run in runs]).astype(np.float32)
        half_width = float(np.nanmean(sight[..., 2])) * runs[0].camera.half_width
        counts = [len(part) for part in frames]
        return cls(tasks, names, np.concatenate(frames), numbers.repeat(counts), sight, half_width)


def spread(run: TrueRun, names: Sequence[str]) -> NDArray[np.float32]:
    """Return a run's points under all ``names``, ``[T+1, P, 3]`` (m); NaN for those it lacks or that fell off."""
    full = np.full((len(run.point), len(names), 3), np.nan, np.float32)
    full[:, [names.index(name) for name in run.names]] = run.point
    full[full[..., 2] < FALLEN] = np.nan
    return full


def position_errors(
    sight: NDArray[np.float32], true: NDArray[np.float32], run: TrueRun
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far sights are off.

    Args:
        sight: read, ``[N, P, 3]``.
        true: positions in the world, ``[N, P, 3]`` (m); NaN where there is none.
        run: whose camera took the pictures.

    Returns:
        ``[N, P]`` in centimetres, NaN where there is no point: the distance in space, and across the line of sight.
    """
    error = run.camera.unproject(sight) - true
    across = run.camera.across(error, true)
    whole, part = (CENTIMETRES * np.linalg.norm(vector, axis=-1) for vector in (error, across))
    return whole, part


class PositionProbe(nn.Module):
    """An image encoder that knows the task, and a small head for all points.

    Args:
        config: sizes.
        tasks: names of the tasks it is trained on.
        names: of the points it reads.
    """

    def __init__(self, config: ProbeSettings, tasks: Sequence[str], names: Sequence[str]) -> None:
        super().__init__()
        self.config, self.tasks, self._names = config, tuple(tasks), tuple(names)
        self.task = nn.Embedding(len(tasks), TASK_WIDTH)
        self.encoder = ImageEncoder(TASK_WIDTH, width=config.width, blocks=config.blocks, keypoints=config.keypoints)
        self.head = Mlp(self.encoder.out_width, config.hidden, 3 * len(names))
        self.register_buffer("mean", torch.zeros(len(names), 3))
        self.register_buffer("deviation", torch.ones(len(names), 3))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the points."""
        return self._names

    def forward(self, frame: Tensor, task: Tensor) -> Tensor:
        """Map uint8 ``[N, Y, X, 3]`` and task numbers ``[N]`` to sights ``[N, P, 3]``."""
        raw = self.head(self.encoder(frame, self.task(task))).unflatten(1, (-1, 3))
        return self.get_buffer("mean") + self.get_buffer("deviation") * raw

    @torch.no_grad()
    def read(self, frames: NDArray[np.uint8], task: str, *, batch: int = 256) -> NDArray[np.float32]:
        """Read sights; see :class:`Reader`.

        Raises:
            SettingError: it was not trained on that task.
        """
        if task not in self.tasks:
            raise SettingError(f"probe: was trained on {', '.join(self.tasks)}, not on {task}; record episodes of it")
        device = self.get_buffer("mean").device
        parts = torch.from_numpy(frames).split(batch)
        number = torch.tensor([self.tasks.index(task)], device=device)
        read = [self(part.to(device), number.expand(len(part))).cpu() for part in parts]
        return torch.cat(read).numpy()

    def save(self, folder: Path) -> None:
        """Write an artefact folder."""
        config = {"sizes": asdict(self.config), "tasks": list(self.tasks), "names": list(self.names)}
        write_artefact(folder, kind=KIND, config=config, tensors=self.state_dict())

    @classmethod
    def load(cls, folder: Path, device: torch.device | str) -> PositionProbe:
        """Read :meth:`save`'s folder; ArtefactError when it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=KIND)
        try:
            config = artefact.config
            probe = cls(ProbeSettings(**config["sizes"]), config["tasks"], config["names"])
            probe.load_state_dict(artefact.tensors)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ArtefactError(f"{folder}: config and weights do not fit this version: {error}") from error
        return probe.to(device).eval()


def new_probe(config: ProbeSettings, frames: ProbeFrames, *, seed: int) -> PositionProbe:
    """Make an untrained probe that answers with each point's mean sight, give or take its deviation."""
    with initial_weights(seed, "probe"):
        probe = PositionProbe(config, frames.tasks, frames.names)
    count = np.isfinite(frames.sight).sum(axis=0).clip(1)
    mean = np.nansum(frames.sight, axis=0) / count
    variance = np.nansum(np.square(frames.sight - mean), axis=0) / count
    probe.get_buffer("mean").copy_(torch.from_numpy(mean))
    # What never changes keeps a thousandth to answer with.
    probe.get_buffer("deviation").copy_(torch.from_numpy(np.sqrt(variance)).clamp_min(1e-3))
    return probe


def probe_loss(read: Tensor, true: Tensor, half_width: float) -> Tensor:
    """Huber loss of sights ``[N, P, 3]`` in centimetres (linear beyond 1 cm), over the points that exist.

    ``half_width`` turns u and v into metres.
    """
    exists = torch.isfinite(true)
    unit = CENTIMETRES * true.new_tensor([half_width, half_width, 1.0])
    target = torch.where(exists, true, read.detach())
    loss = F.smooth_l1_loss(unit * read, unit * target, reduction="none")
    return loss.sum() / exists.sum().clamp_min(1)


def shifted(frame: Tensor, sight: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shift pictures by whole pixels, and their sights with them.

    Args:
        frame: uint8 ``[N, Y, X, 3]``.
        sight: ``[N, P, 3]``.
        fraction: largest shift, of the picture's width.
        generator: CPU stream; two integers per row are drawn.
    """
    rows, height, width = frame.shape[:3]
    most = int(fraction * width)
    offset = torch.randint(-most, most + 1, (rows, 2), generator=generator).to(frame.device)
    # A picture that begins further down shows everything further up; it spans 2 from edge to edge.
    moved = torch.stack([offset[:, 1] * 2 / width, offset[:, 0] * 2 / height, torch.zeros_like(offset[:, 0])], dim=1)
    return shift(frame, offset), sight - moved[:, None]


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
        frame = colour_jitter(frame, strength=config.jitter, generator=generator)
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
