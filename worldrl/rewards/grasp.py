"""Inverse dynamics of the grasp: where the hand must close, read off the picture before and what is to be done.

A frame shows where the arm is; it does not show whether fingers that closed beside an object could have lifted it. That is decided at the closing, so
this inverse dynamics spans it: from a frame before the closing and the instruction, which says what was held afterwards, it reads the command
under which the hand closed for good. It learns from recorded successes alone::

    frame, instruction ─► encoder (points and what is seen there) ─► MLP ─► commanded position at the closing

Imagined successes are compared with it: a hand that was told to close elsewhere held nothing. It never sees the dream's own frames, which show
the arm as it was told whether or not the object could have come along::

    surprise = mean_d (told_d - read_d)² / deviation²

Where every recorded success of a sentence that began with open hands closed one, an imagined success without a closing is none.

One deviation serves all columns, which share a unit (m, or rad): a hand a centimetre too high misses as one a centimetre beside.

Shapes legend: ``E`` rollouts, ``R`` frames, ``B`` rows, ``N`` commands, ``A`` numbers of a command, ``D`` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.typed import from_plain
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import Episode
from worldrl.nn.blocks import Mlp
from worldrl.nn.text import InstructionEncoder
from worldrl.nn.vision import ImageEncoder, colour_jitter

KIND = "grasp-dynamics"
GRASP_FOLDER = "grasp"
"""Its folder in a run directory of ``worldrl train-idm``."""
LEAST_DEVIATION = 1e-3
"""Of a column: what is always the same may differ by a thousandth of its unit."""
ROBUST = 0.1
"""Error, in standard deviations of the data, from which on the loss grows no faster than the error: hands that pushed the object before they
closed are far from where the picture shows it."""
CERTAIN = 10
"""So many successes of a sentence that began with open hands, and all of them closed one: without a closing there is none."""


@dataclass
class GraspConfig:
    """Sizes and training of a :class:`GraspDynamics`.

    Attributes:
        width: channels of the image encoder.
        blocks: its residual blocks.
        keypoints: keypoints of the image encoder.
        text_width: size of the instruction vector.
        hidden: width of the head's hidden layer.
        steps: of its training; 0 trains none in ``train-idm``.
        batch: frames per step.
        learning_rate: peak, warm-up cosine.
        weight_decay: AdamW.
        jitter: strength of the colour jitter.
        first_share: share of the frames that are their episode's first; the others are any before the closing.
        ema_decay: of the averaged weights that it ends with: recorded closings are noisy, and the last steps would overfit them.
        checkpoint_every: steps between checkpoints.
    """

    width: int = 32
    blocks: int = 2
    keypoints: int = 16
    text_width: int = 32
    hidden: int = 128
    steps: int = 0
    batch: int = 48
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    jitter: float = 0.05
    first_share: float = 0.5
    ema_decay: float = 0.995
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        """Check the ranges."""
        counts = ("width", "blocks", "keypoints", "text_width", "hidden", "batch", "checkpoint_every")
        require_at_least_one(self, counts, of="grasp")
        if self.steps < 0:
            raise SettingError(f"grasp.steps must be 0 or more, got {self.steps}")
        if not 0 <= self.first_share <= 1:
            raise SettingError(f"grasp.first_share must be in [0, 1], got {self.first_share}")
        if not 0 <= self.ema_decay < 1:
            raise SettingError(f"grasp.ema_decay must be in [0, 1), got {self.ema_decay}")


@dataclass(frozen=True)
class Closings:
    """Frames before the closing that led to a success.

    Attributes:
        frame: uint8 ``[R, Y, X, 3]``.
        told: commanded numbers at the closing, float32 ``[R, D]``.
        instruction: ``R`` sentences.
        first: bool ``[R]``, the first frame of its episode.
        actions: of the robot.
        closes: sentences that are not fulfilled without a closing (:func:`instructions_that_close`).
    """

    frame: Tensor
    told: Tensor
    instruction: tuple[str, ...]
    first: Tensor
    actions: ActionSpec
    closes: tuple[str, ...] = ()

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, camera: str, first_only: bool = False) -> Closings:
        """Find them in recorded episodes; those without a success, or without a closing before it, have none.

        Raises:
            SettingError: no episode has one.
        """
        found = [(episode, step) for episode in episodes if (step := closing_of(episode)) >= 0]
        if not found:
            raise SettingError(
                f"grasp: none of {len(episodes)} episodes closes the hand and then succeeds; record successes, of tasks that take hold of something"
            )
        kept = [1 if first_only else step for _, step in found]
        actions = found[0][0].actions
        return cls(
            frame=torch.from_numpy(np.concatenate([e.view(camera)[:n] for (e, _), n in zip(found, kept, strict=True)])),
            told=torch.cat([positions(actions, e.command[s : s + 1]).expand(n, -1) for (e, s), n in zip(found, kept, strict=True)]),
            instruction=tuple(e.instruction for (e, _), n in zip(found, kept, strict=True) for _ in range(n)),
            first=torch.cat([torch.arange(n) == 0 for n in kept]),
            actions=actions,
            closes=instructions_that_close(episodes),
        )  # fmt: skip


def closing_of(episode: Episode) -> int:
    """Frame of the last closing before an episode's first success, -1 where there is none."""
    end = episode.first_success
    return -1 if end is None else episode.actions.last_closing(episode.command[: end + 1])


def instructions_that_close(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Sentences of which :data:`CERTAIN` successes or more began with open hands, all with a closing before the success; sorted."""
    closed = dict[str, list[bool]]()
    for episode in episodes:
        if episode.success and not episode.actions.closed(episode.command[:1]).any():
            closed.setdefault(episode.instruction, []).append(closing_of(episode) >= 0)
    return tuple(sorted(said for said, found in closed.items() if len(found) >= CERTAIN and all(found)))


def position_names(actions: ActionSpec) -> tuple[str, ...]:
    """Names of the commanded numbers that are compared: a tool's position, or all joints; never the gripper itself."""
    return (
        tuple(name for place, name in enumerate(actions.names) if place not in actions.grippers)
        if actions.absolute
        else ("x", "y", "z")
    )


def positions(actions: ActionSpec, command: np.ndarray | Tensor) -> Tensor:
    """Take those numbers of commands ``[..., A]``, float32 ``[..., D]``."""
    kept = [place for place in range(actions.size) if place not in actions.grippers] if actions.absolute else [0, 1, 2]
    return torch.as_tensor(command)[..., kept].float()


class GraspDynamics(nn.Module):
    """A picture and what is to be done, to where the hand closes.

    Args:
        config: sizes.
        actions: of the robot.
        closes: sentences that are not fulfilled without a closing, from open hands.

    Attributes:
        mean: of each column in the training data, ``[D]``.
        scale: its standard deviation there, ``[D]``.
        deviation: root mean square error over all columns on episodes kept apart, a scalar.
    """

    mean: Tensor
    scale: Tensor
    deviation: Tensor

    def __init__(self, config: GraspConfig, actions: ActionSpec, closes: Sequence[str] = ()):
        super().__init__()
        self.config, self.actions, self.closes = config, actions, frozenset(closes)
        columns = len(position_names(actions))
        sizes = {"width": config.width, "blocks": config.blocks, "keypoints": config.keypoints}
        self.text = InstructionEncoder(config.text_width)
        self.encoder = ImageEncoder(config.text_width, **sizes)
        self.head = Mlp(self.encoder.out_width, config.hidden, columns)
        for name, value in (
            ("mean", torch.zeros(columns)),
            ("scale", torch.ones(columns)),
            ("deviation", torch.ones(())),
        ):
            self.register_buffer(name, value)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.mean.device

    def forward(self, frame: Tensor, instruction: Sequence[str]) -> Tensor:
        """Read frames uint8 ``[B, Y, X, 3]`` before their closing: standardised ``[B, D]``."""
        return self.head(self.encoder(frame.to(self.device), self.text(instruction)))

    @torch.no_grad()
    def read(self, frame: Tensor, instruction: Sequence[str], *, batch: int = 256) -> Tensor:
        """Where the hand must close, in the command's own units: float32 ``[R, D]`` on the CPU."""
        parts = [self(frame[k : k + batch], instruction[k : k + batch]) for k in range(0, len(frame), batch)]
        return (self.mean + self.scale * torch.cat(parts)).cpu()

    def normalised_error(self, frame: Tensor, instruction: Sequence[str], command: Tensor) -> Tensor:
        """Compare commands at the closing with what the frames before ask for.

        Args:
            frame: uint8 ``[E, Y, X, 3]``.
            instruction: ``E`` sentences.
            command: ``[E, A]`` when the hand was told to close.

        Returns:
            ``[E]``: 1 on average where the instruction is then fulfilled.
        """
        error = positions(self.actions, command).cpu() - self.read(frame, instruction)
        return (error / self.deviation.cpu()).square().mean(dim=-1)

    # -- folder ----------------------------------------------------------------------------------------------

    def save(self, folder: Path, *, parents: Sequence[dict[str, Any]] = (), learned: Learned | None = None) -> None:
        """Write an artefact folder: what it was made from, and all that it has learned from (None leaves that unknown)."""
        config = {"sizes": asdict(self.config), "actions": self.actions.to_json(), "closes": sorted(self.closes)}
        files = None if learned is None else learned.files()
        write_artefact(folder, kind=KIND, config=config, tensors=self.state_dict(), files=files, parents=parents)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> GraspDynamics:
        """Read :meth:`save`'s folder; ArtefactError when it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=KIND)
        with fitting(artefact):
            sizes, actions = (
                from_plain(GraspConfig, artefact.config["sizes"], where="sizes"),
                ActionSpec.from_json(artefact.config["actions"]),
            )
            grasp = cls(sizes, actions, artefact.config.get("closes", ()))  # older folders do not say
            load_weights(grasp, artefact)
        return grasp.to(device).eval()


def fit_grasp(
    config: GraspConfig, data: Closings, *, seed: int, device: torch.device, folder: Path | None, log: MetricLog | None, series: str = GRASP_FOLDER
) -> tuple[GraspDynamics, FitReport]:  # fmt: skip
    """Train from random weights to the least (robust) error; a killed training goes on bit for bit.

    Args:
        config: sizes and training.
        data: what it reads.
        seed: of initial weights and draws.
        device: where it is trained.
        folder: of the checkpoints.
        log: receives the loss.
        series: name in the log.
    """
    with initial_weights(seed, GRASP_FOLDER):
        grasp = GraspDynamics(config, data.actions, data.closes)
    grasp.mean.copy_(data.told.mean(dim=0))
    grasp.scale.copy_(data.told.std(dim=0, correction=0).clamp_min(LEAST_DEVIATION))
    grasp.to(device)
    first = data.first.nonzero().squeeze(1)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = stream(seed, series, step)
        anywhere = torch.randint(len(data.frame), (config.batch,), generator=generator)
        at_first = first[torch.randint(len(first), (config.batch,), generator=generator)]
        row = torch.where(torch.rand(config.batch, generator=generator) < config.first_share, at_first, anywhere)
        frame = colour_jitter(data.frame[row], strength=config.jitter, generator=generator)
        read = grasp(frame, [data.instruction[r] for r in row.tolist()])
        wanted = (data.told[row].to(device) - grasp.mean) / grasp.scale
        return smooth_l1_loss(read, wanted, beta=ROBUST), {"grasp/error": (read - wanted).detach().abs().mean()}

    report = fit_module(
        series,
        grasp,
        loss,
        part=GRASP_FOLDER,
        optimizer=adamw(grasp, config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=100,
        ema_decay=config.ema_decay,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
    )
    return grasp.eval(), report


def measure_deviation(grasp: GraspDynamics, kept: Closings) -> None:
    """Set the error to be expected on first frames of episodes that it has not learned from."""
    error = kept.told - grasp.read(kept.frame, kept.instruction)
    grasp.deviation.copy_(error.square().mean().sqrt().clamp_min(LEAST_DEVIATION))
