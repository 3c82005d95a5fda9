"""Inverse dynamics of the grasp: the position where the hand must close, from a frame before and the instruction.

A frame does not show whether fingers that closed beside an object could have lifted it. The model learns from
recorded successes alone, from frames before the last closing, and imagined successes are compared with it::

    frame, instruction ─► encoder (keypoints and their features) ─► MLP ─► commanded position at the closing
    normalised error = mean_d (commanded_d - predicted_d)² / deviation²

Imagined frames are not an input: they show the arm as commanded, whether or not the object could have followed. An
imagined success without a closing is rejected where every recorded success of the instruction had one.

Shapes legend: ``E`` rollouts, ``R`` frames, ``B`` rows, ``N`` commands, ``A`` numbers of a command, ``D`` columns.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.typed import from_plain
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import Episode
from worldrl.nn.blocks import Mlp
from worldrl.nn.stored import StoredModule
from worldrl.nn.text import InstructionEncoder
from worldrl.nn.vision import ImageEncoder, colour_jitter
from worldrl.rewards.config import GraspConfig

GRASP_FOLDER = "grasp"  # its folder in a run directory of ``worldrl train-idm``
LEAST_DEVIATION = 1e-3  # lower bound of a column's deviation, in its unit
ROBUST = 0.1
"""Error (standard deviations of the data) above which the loss is linear: some objects move before the closing."""
CERTAIN = 10  # number of successes that began with open hands after which "all of them closed a hand" counts as a rule


@dataclass(frozen=True)
class Closings:
    """Frames before the closing that led to a success."""

    frame: Tensor  # uint8 ``[R, Y, X, 3]``.
    commanded: Tensor  # numbers commanded at the closing, float32 ``[R, D]``.
    instruction: tuple[str, ...]  # ``R`` texts.
    first: Tensor  # bool ``[R]``, the first frame of its episode.
    actions: ActionSpec
    closes: tuple[str, ...] = ()  # instructions that need a closing (:func:`instructions_that_close`).

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, camera: str, first_only: bool = False) -> "Closings":
        """Collect them from recorded episodes that close the hand and then succeed; SettingError: no episode does."""
        found = [(episode, step) for episode in episodes if (step := closing_of(episode)) >= 0]
        if not found:
            raise SettingError(
                f"grasp: none of {len(episodes)} episodes closes the hand and then succeeds; record successes, of tasks that take hold of something"
            )
        counts = [1 if first_only else step for _, step in found]
        actions = found[0][0].actions
        return cls(
            frame=torch.from_numpy(np.concatenate([e.view(camera)[:n] for (e, _), n in zip(found, counts, strict=True)])),
            commanded=torch.cat([positions(actions, e.command[s : s + 1]).expand(n, -1) for (e, s), n in zip(found, counts, strict=True)]),
            instruction=tuple(e.instruction for (e, _), n in zip(found, counts, strict=True) for _ in range(n)),
            first=torch.cat([torch.arange(n) == 0 for n in counts]),
            actions=actions,
            closes=instructions_that_close(episodes),
        )  # fmt: skip


def closing_of(episode: Episode) -> int:
    """Frame of the last closing before an episode's first success, -1 for none."""
    end = episode.first_success
    return -1 if end is None else episode.actions.last_closing(episode.command[: end + 1])


def instructions_that_close(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Instructions with :data:`CERTAIN` or more successes from open hands, all with a closing before; sorted."""
    closed = dict[str, list[bool]]()
    for episode in episodes:
        if episode.success and not episode.actions.closed(episode.command[:1]).any():
            closed.setdefault(episode.instruction, []).append(closing_of(episode) >= 0)
    return tuple(sorted(text for text, found in closed.items() if len(found) >= CERTAIN and all(found)))


def position_names(actions: ActionSpec) -> tuple[str, ...]:
    """Names of the compared numbers: a tool's position, or all joints without the grippers."""
    return (
        tuple(name for place, name in enumerate(actions.names) if place not in actions.grippers)
        if actions.absolute
        else ("x", "y", "z")
    )


def positions(actions: ActionSpec, command: np.ndarray | Tensor) -> Tensor:
    """Select those numbers of commands ``[..., A]``, float32 ``[..., D]``."""
    places = [p for p in range(actions.size) if p not in actions.grippers] if actions.absolute else [0, 1, 2]
    return torch.as_tensor(command)[..., places].float()


class GraspDynamics(StoredModule):
    """From an image and an instruction to the place where the hand closes; ``closes``: instructions that need it."""

    kind = "grasp-dynamics"
    mean: Tensor  # of each column in the training data, ``[D]``.
    scale: Tensor  # standard deviation of each column there, ``[D]``.
    deviation: Tensor  # root mean square error over all columns on held-out episodes, a scalar.

    def __init__(self, config: GraspConfig, actions: ActionSpec, closes: Sequence[str] = ()):
        super().__init__()
        self.config, self.actions, self.closes = config, actions, frozenset(closes)
        self.sizes = {"sizes": asdict(config), "actions": actions.to_json(), "closes": sorted(closes)}
        columns = len(position_names(actions))
        sizes: dict[str, Any] = {"width": config.width, "blocks": config.blocks, "keypoints": config.keypoints}
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
        """Device of the weights."""
        return self.mean.device

    def forward(self, frame: Tensor, instruction: Sequence[str]) -> Tensor:
        """Standardised positions ``[B, D]`` of frames uint8 ``[B, Y, X, 3]`` before the closing."""
        return self.head(self.encoder(frame.to(self.device), self.text(instruction)))

    @torch.no_grad()
    def read(self, frame: Tensor, instruction: Sequence[str], *, batch: int = 256) -> Tensor:
        """Position where the hand must close, in the command's units: float32 ``[R, D]`` on the CPU."""
        parts = [self(frame[k : k + batch], instruction[k : k + batch]) for k in range(0, len(frame), batch)]
        return (self.mean + self.scale * torch.cat(parts)).cpu()

    def normalised_error(self, frame: Tensor, instruction: Sequence[str], command: Tensor) -> Tensor:
        """Error ``[E]`` of closing commands ``[E, A]`` against frames ``[E, Y, X, 3]``; 1 on average for successes."""
        error = positions(self.actions, command).cpu() - self.read(frame, instruction)
        return (error / self.deviation.cpu()).square().mean(dim=-1)

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of its folder's config."""
        sizes = from_plain(GraspConfig, stored["sizes"], where="sizes")
        return cls(sizes, ActionSpec.from_json(stored["actions"]), stored.get("closes", ()))  # absent in older folders


def fit_grasp(
    config: GraspConfig, data: Closings, *, seed: int, device: torch.device, folder: Path | None, log: MetricLog | None, series: str = GRASP_FOLDER
) -> tuple[GraspDynamics, FitReport]:  # fmt: skip
    """Train to the least robust error; a stopped training resumes bit for bit."""
    with initial_weights(seed, GRASP_FOLDER):
        grasp = GraspDynamics(config, data.actions, data.closes)
    grasp.mean.copy_(data.commanded.mean(dim=0))
    grasp.scale.copy_(data.commanded.std(dim=0, correction=0).clamp_min(LEAST_DEVIATION))
    grasp.to(device)
    first = data.first.nonzero().squeeze(1)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = stream(seed, series, step)
        anywhere = torch.randint(len(data.frame), (config.batch,), generator=generator)
        at_first = first[torch.randint(len(first), (config.batch,), generator=generator)]
        row = torch.where(torch.rand(config.batch, generator=generator) < config.first_share, at_first, anywhere)
        frame = colour_jitter(data.frame[row], strength=config.jitter, generator=generator)
        read = grasp(frame, [data.instruction[r] for r in row.tolist()])
        target = (data.commanded[row].to(device) - grasp.mean) / grasp.scale
        return smooth_l1_loss(read, target, beta=ROBUST), {"grasp/error": (read - target).detach().abs().mean()}

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


def measure_deviation(grasp: GraspDynamics, held_out: Closings) -> None:
    """Set the expected error from first frames of held-out episodes."""
    error = held_out.commanded - grasp.read(held_out.frame, held_out.instruction)
    grasp.deviation.copy_(error.square().mean().sqrt().clamp_min(LEAST_DEVIATION))
