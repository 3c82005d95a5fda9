"""A critic that predicts whether the execution of a planned video succeeds, trained on executed plans.

EVA's executability measures smoothness and joint limits. A smooth motion may still close the fingers beside the
handle. Here a small ensemble reads the targets q_1..q_T that an inverse dynamics decodes from a video's frames, and
the instruction::

    x = (q - mean) / deviation,     p_k = sigmoid(f_k(x, instruction))
    R = mean_k p_k - std_k p_k - distance_penalty min((d/reach - 1)+, 1)

The members learn from resamples of the plans and share the instruction encoder, so they differ by less than separate
ones. Far from all executed plans they may agree and be wrong, which Mahalanobis's distance d of x to these plans
covers; ``reach`` is the 99 % quantile of d over plans left out of its fit. A shorter video holds its last targets.

Shapes legend: ``N`` videos, ``T`` imagined frames, ``D`` targets, ``P`` = T D, ``K`` members, ``H`` hidden width.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.typed import from_plain
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import ImaginedVideos
from worldrl.nn.stacked import StackedLinear, fan_in_uniform
from worldrl.nn.stored import StoredModule
from worldrl.nn.text import InstructionEncoder
from worldrl.rewards.motion.basis import check_frame_time, check_terms
from worldrl.rewards.motion.inverse_dynamics import IDM_FOLDER, InverseDynamics, read_once

TERM = "execution"
CRITIC = "critic"  # folder of the critic in the reward's folder, beside the inverse dynamics
LEAST_DEVIATION = 0.05
"""Lower bound of a target's deviation (rad, or gripper opening): small motions are not scaled to unit deviation."""
REACHED = 0.99  # share of executed plans within the reach
SHRINKAGE = 0.1
"""Share of the mean variance in every direction's variance: directions without data are not infinitely far."""


@dataclass
class ExecutionConfig:
    """The critic and its training."""

    members: int = 5  # size of the ensemble.
    hidden: int = 64  # width of each member's hidden layer.
    text_width: int = 16  # size of the instruction vector.
    dropout: float = 0.3  # share of a member's hidden numbers that a training step leaves out.
    steps: int = 900  # training steps.
    batch: int = 64  # plans per member and step.
    learning_rate: float = 1e-3  # peak, warm-up cosine.
    weight_decay: float = 0.01  # AdamW.
    distance_penalty: float = 0.0  # penalty of a plan at twice the reach of the executed plans; 0 disables it.

    def __post_init__(self) -> None:
        if self.members < 2:
            raise SettingError(f"execution.members must be at least 2, to disagree; got {self.members}")
        require_at_least_one(self, ("hidden", "steps", "batch"), of="execution")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"execution.dropout must be in [0, 1), got {self.dropout}")
        if not self.distance_penalty >= 0:
            raise SettingError(f"execution.distance_penalty must be 0 or more, got {self.distance_penalty}")


def pessimistic(logit: Tensor) -> Tensor:
    """R = mean_k p_k - std_k p_k of the members' logits ``[K, N]``, ``[N]``."""
    probability = torch.sigmoid(logit)
    return probability.mean(dim=0) - probability.std(dim=0, correction=0)


def whitening(path: Tensor) -> Tensor:
    """W ``[P, P]`` with W Wᵀ = ((1 - λ) C + λ (tr C / P) I)⁻¹, C the covariance of ``path`` ``[N, P]``."""
    centred = path - path.mean(dim=0)
    covariance = centred.T @ centred / len(path)
    mean_variance = covariance.diagonal().mean().clamp_min(torch.finfo(path.dtype).eps)
    variance, direction = torch.linalg.eigh(covariance)
    return direction * ((1 - SHRINKAGE) * variance.clamp_min(0) + SHRINKAGE * mean_variance).rsqrt()


def distance(path: Tensor, centre: Tensor, whiten: Tensor) -> Tensor:
    """Distance d = |(x - centre) W| / sqrt(P) of ``path`` ``[N, P]``, ``[N]``."""
    return ((path - centre) @ whiten).square().mean(dim=1).sqrt()


def reached(path: Tensor) -> Tensor:
    """:data:`REACHED` quantile of the distances of ``path`` ``[N, P]``, a scalar; one half measures the other."""
    halves = path[::2], path[1::2]
    found = [distance(one, other.mean(dim=0), whitening(other)) for one, other in (halves, halves[::-1])]
    return torch.cat(found).quantile(REACHED)


def held_to(read: Tensor, frames: int) -> Tensor:
    """Hold the last targets of ``[N, T, D]`` until there are ``frames``; SettingError: there are more."""
    missing = frames - read.shape[1]
    if missing < 0:
        raise SettingError(
            f"execution: this critic learned from plans of {frames} frames, and a video has {read.shape[1]}; execute "
            "plans of that length"
        )
    return torch.cat([read, read[:, -1:].expand(-1, missing, -1)], dim=1)


class ExecutionCritic(StoredModule):
    """``K`` small networks from a plan's targets ``[T, D]`` and instruction to the logit of its execution's success."""

    kind = "execution-critic"

    def __init__(self, config: ExecutionConfig, frames: int, width: int):
        super().__init__()
        self.config, self.frames, self.width = config, frames, width
        self.sizes = {"sizes": asdict(config), "frames": frames, "width": width}
        self.instruction = InstructionEncoder(config.text_width)
        self.into = StackedLinear(config.members, frames * width + config.text_width, config.hidden)
        self.out = StackedLinear(config.members, config.hidden, 1)
        for layer in (self.into, self.out):
            fan_in_uniform(layer)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))
        if config.distance_penalty:
            size = frames * width
            self.register_buffer("centre", torch.zeros(size))
            self.register_buffer("whiten", torch.eye(size))
            self.register_buffer("reach", torch.ones(()))

    def take_scales(self, read: Tensor) -> None:
        """Set mean, deviation and reach from executed plans ``[N, T, D]``."""
        self.get_buffer("mean").copy_(read.mean(dim=(0, 1)))
        self.get_buffer("deviation").copy_(read.std(dim=(0, 1)).clamp_min(LEAST_DEVIATION))
        if self.config.distance_penalty:
            path = self.standardised(read)
            self.get_buffer("centre").copy_(path.mean(dim=0))
            self.get_buffer("whiten").copy_(whitening(path))
            self.get_buffer("reach").copy_(reached(path))

    def standardised(self, read: Tensor) -> Tensor:
        """Standardised path x ``[N, P]`` of plans' targets ``[N, T, D]``."""
        path = (held_to(read, self.frames) - self.get_buffer("mean")) / self.get_buffer("deviation")
        return path.flatten(1)

    def inputs(self, read: Tensor, instruction: Sequence[str]) -> Tensor:
        """Path x of targets ``[N, T, D]`` beside the instructions' vectors, ``[N, P + text_width]``."""
        return torch.cat([self.standardised(read), self.instruction(instruction)], dim=1)

    def beyond(self, read: Tensor) -> Tensor:
        """Distance beyond the reach, min((d/reach - 1)+, 1), of plans' targets ``[N, T, D]``, ``[N]``."""
        if not self.config.distance_penalty:
            return read.new_zeros(len(read))
        away = distance(self.standardised(read), self.get_buffer("centre"), self.get_buffer("whiten"))
        return (away / self.get_buffer("reach") - 1).clamp(0, 1)

    def forward(self, inputs: Tensor, kept: Tensor | None = None) -> Tensor:
        """Logits ``[K, N]`` of each member's rows ``[K, N, ...]``; ``kept`` ``[K, N, H]`` is the dropout's scale."""
        hidden = F.gelu(self.into(inputs))
        return self.out(hidden if kept is None else hidden * kept).squeeze(-1)

    @torch.no_grad()
    def reward(self, read: Tensor, instruction: Sequence[str]) -> Tensor:
        """R of plans' targets ``[N, T, D]``, float32 ``[N]``."""
        rows = self.inputs(read, instruction)
        value = pessimistic(self(rows.expand(self.config.members, *rows.shape)))
        return value - self.config.distance_penalty * self.beyond(read)

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of its folder's config."""
        config = from_plain(ExecutionConfig, stored["sizes"], where="sizes")
        return cls(config, stored["frames"], stored["width"])


def fit_execution(
    config: ExecutionConfig,
    read: Tensor,
    instruction: list[str],
    success: Tensor,
    *,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    on_step: Callable[[int], None] | None = None,
) -> tuple[ExecutionCritic, FitReport]:
    """Train a critic by cross-entropy on targets decoded from executed plans, float32 ``[N, T, D]``.

    Without ``folder`` there are no checkpoints. ``on_step`` gets each step's index after it. Raises SettingError: all
    plans have the same outcome.
    """
    if not 0 < int(success.sum()) < len(success):
        outcome = "succeeded" if success.any() else "failed"
        raise SettingError(
            f"execution: a critic needs successes and failures to learn from, and all {len(success)} plans {outcome}"
        )
    with initial_weights(seed, "execution"):
        critic = ExecutionCritic(config, *read.shape[1:])
    critic.take_scales(read)
    shape, members = (config.members, config.batch), torch.arange(config.members)[:, None]
    resample = torch.randint(len(read), (config.members, len(read)), generator=stream(seed, "execution", "resample"))

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = stream(seed, "execution", step)
        rows = resample[members, torch.randint(len(read), shape, generator=generator)]  # [K, B]
        kept = (torch.rand(*shape, config.hidden, generator=generator) >= config.dropout) / (1 - config.dropout)
        inputs = critic.inputs(read[rows.flatten()], [instruction[i] for i in rows.flatten().tolist()])
        logit = critic(inputs.unflatten(0, shape), kept)
        value = F.binary_cross_entropy_with_logits(logit, success[rows].float())
        return value, {"execution/loss": value.detach()}

    report = fit_module(
        "execution",
        critic,
        loss,
        part="critic",
        optimizer=adamw(critic, config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=50,
        folder=folder,
        log=log,
        on_step=on_step,
    )
    return critic, report


# --- as a reward of imagined videos ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExecutionReward:
    """R as a :class:`~worldrl.core.interfaces.VideoReward` of planned videos."""

    idm: InverseDynamics
    critic: ExecutionCritic
    names: tuple[str, ...] = (TERM,)

    @torch.no_grad()
    def score(self, videos: ImaginedVideos) -> Tensor:
        """R ``[N, 1]`` after the recorded first frame; SettingError: longer videos or other time steps."""
        check_frame_time(self.idm.basis, videos.frame_s)
        read = read_once(self.idm, videos)[:, 1:]
        return self.critic.reward(read, videos.instruction)[:, None]


def execution_reward(folder: str, terms: Sequence[str], device: torch.device) -> ExecutionReward:
    """Make the reward ``execution``; the critic stays on the CPU.

    Equation: R = the probability that an executed plan succeeds
    Paper: none

    Raises ArtefactError: no inverse dynamics or no critic; SettingError: no folder is given, or an unknown term.
    """
    if not folder:
        raise SettingError(
            "folders.execution: this reward needs the folder of an inverse dynamics (idm) and its critic (critic); give "
            "executed_plans=800 and the run directory of train-idm, or the execution folder of a run that executed plans"
        )
    check_terms(terms, (TERM,))
    return ExecutionReward(
        InverseDynamics.load(Path(folder) / IDM_FOLDER, device), ExecutionCritic.load(Path(folder) / CRITIC)
    )
