"""Heads on the dynamics' features, learned with them: success, gripper, measured state; and the outcome of a rollout.

Success: whether each frame fulfils the instruction, from its chunk alone (World-VLA-Loop's r̂ = φ(z)). Gripper: the
measured opening, in which a held object shows; in pixels that bit is a few tokens among thousands of numbers, and a model
trained on pixels alone lifted objects that it had not grasped. The findings of both are the outcome head's input.

Outcome: whether the instruction has been fulfilled, given the whole imagined rollout so far. Where the fingers close half
beside an object, one sample shows it held and the next one not; a chunk later the image no longer shows that uncertainty.
It is recurrent, and learns from episodes that the model imagined from their true actions, against the real outcomes.

State: the measured numbers, with their uncertainty. They lie near the command, and differ where the robot lags, holds
something or is blocked. A linear map of the frame's command and its change is fitted to the recordings once; the head
predicts what is left as a Gaussian: numbers that no image shows have a wide one.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``G`` grippers, ``S`` measured numbers, ``C`` numbers of a frame's command
and its change, ``n`` tokens, ``d`` width.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.rng import WHOLE, Part
from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp
from worldrl.nn.text import InstructionEncoder

TEXT_WIDTH = 64


class SuccessHead(nn.Module):
    """One query per predicted frame, made of the instruction, attends to the dynamics' tokens; features have width ``d``."""

    def __init__(self, width: int, heads: int, frames: int):
        super().__init__()
        self.instruction = InstructionEncoder(TEXT_WIDTH)
        self.instruction_out = nn.Linear(TEXT_WIDTH, width)
        self.frame = nn.Parameter(0.02 * torch.randn(frames, width))
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.gate = nn.Linear(width, width)
        self.norm_out = nn.LayerNorm(width)
        self.out = Mlp(width, width, 1)

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions as ``[B, d]``, constant over a rollout."""
        return self.instruction_out(self.instruction(instruction))

    def find(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]`` and embedded instructions ``[B, d]``."""
        query = embedded[:, None] + self.frame
        found = self.attention(self.norm(query), features)
        # Without this product, a head of 3,000 steps answered "something was lifted" to every instruction.
        gated = self.norm_out(found) * (1 + self.gate(embedded))[:, None]
        return query + gated

    def forward(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return logits ``[B, F]``."""
        return self.out(self.find(features, embedded)).squeeze(-1)


def success_loss(
    logit: Tensor,
    success: Tensor,
    valid: Tensor,
    level: Tensor,
    positive_weight: float,
    noise_weight: float,
    part: Part = WHOLE,
) -> Tensor:
    """Cross-entropy over valid frames ``[B, F]``, weighted down at high noise ``level`` ``[B, F]`` or ``[B, 1]``.

    A frame weighs 1 - ``noise_weight`` · level: nearly deterministic dynamics have a predictable outcome in noise too.
    ``logit`` may be of one ``part`` of the rows: the mean of all parts' losses is then the loss of the whole batch.
    """
    weight = valid.float() * (1 - noise_weight * level) * torch.where(success, positive_weight, 1.0)
    own, total = part.rows(len(weight)), weight.sum().clamp_min(1e-6) / part.count
    loss = F.binary_cross_entropy_with_logits(logit, success[own].float(), reduction="none")
    return (weight[own] * loss).sum() / total


class GripperHead(nn.Module):
    """One learned query per predicted frame attends to the dynamics' tokens."""

    def __init__(self, width: int, heads: int, frames: int, grippers: int = 1):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, width) / width**0.5)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.out = Mlp(width, width, max(1, grippers))  # at least one output, unused without grippers

    def find(self, features: Tensor) -> Tensor:
        """Return findings ``[B, F, d]`` from features ``[B, n, d]``."""
        query = self.frame.expand(len(features), -1, -1)
        return self.norm(query + self.attention(query, features))

    def forward(self, features: Tensor) -> Tensor:
        """Return the openings ``[B, F, G]`` in the robot's ``opening_unit``."""
        return self.out(self.find(features))


def opening_loss(predicted: Tensor, opening: Tensor, valid: Tensor, unit: float, count: Tensor | None = None) -> Tensor:
    """Mean squared error of ``predicted`` (in ``unit``) and measured openings ``[B, F, G]`` over ``valid`` frames ``[B, F]``.

    ``count`` replaces their number, where these rows are a part of a batch (:meth:`WindowBatch.mean_count`).
    """
    error = (predicted - opening / unit).square() * valid[..., None]
    return error.sum() / (valid_count(valid, count) * predicted.shape[-1])


def valid_count(valid: Tensor, count: Tensor | None) -> Tensor:
    """Count valid frames, at least one, unless the ``count`` is given."""
    return valid.sum().clamp_min(1) if count is None else count


LEAST_LOG_VARIANCE, LARGEST_LOG_VARIANCE = -4.0, 4.0
"""Limits of the predicted log-variance, in units of the variance that the command leaves: an eighth of its deviation, and
seven deviations."""
LEAST_DEVIATION = 1e-4
"""Lower bound of that deviation: a number that follows from the command is not scaled to unit deviation."""


class StateHead(nn.Module):
    """One query per predicted frame, made of its command, attends to the dynamics' tokens."""

    gain: Tensor
    offset: Tensor
    deviation: Tensor
    scaled: Tensor

    def __init__(self, width: int, heads: int, frames: int, command: int, numbers: int):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, width) / width**0.5)
        self.command = nn.Linear(command, width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.out = Mlp(width, width, 2 * numbers)
        for parameter in self.out[-1].parameters():
            nn.init.zeros_(parameter)  # starts from the command alone
        self.register_buffer("gain", torch.zeros(command, numbers))
        self.register_buffer("offset", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))
        self.register_buffer("scaled", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def scale_to(self, state: Tensor, command: Tensor) -> None:
        """Fit the linear map of commands ``[R, C]`` to measured numbers ``[R, S]``, unless there is one already."""
        if self.scaled:
            return
        middle, where = state.double().mean(dim=0), command.double().mean(dim=0)
        x, y = command.double() - where, state.double() - middle
        ridge = 1e-6 * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)  # constant commands have no slope
        gain = torch.linalg.solve(x.T @ x + ridge, x.T @ y)
        self.gain.copy_(gain)
        self.offset.copy_(middle - where @ gain)
        self.deviation.copy_((y - x @ gain).std(dim=0, correction=0).clamp_min(LEAST_DEVIATION))
        self.scaled.fill_(True)

    def forward(self, features: Tensor, command: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance ``[B, F, S]`` of what the command ``[B, F, C]`` leaves, in units of its deviation."""
        query = self.frame + self.command(command)
        found = self.out(self.norm(query + self.attention(query, features)))
        mean, log_variance = found.float().chunk(2, dim=-1)
        # Softly, as in PETS: a clamp has no gradient beyond its limits, where too sure a prediction would stay.
        below = LARGEST_LOG_VARIANCE - F.softplus(LARGEST_LOG_VARIANCE - log_variance)
        return mean, LEAST_LOG_VARIANCE + F.softplus(below - LEAST_LOG_VARIANCE)

    def from_command(self, command: Tensor) -> Tensor:
        """Return what the linear map makes of commands ``[..., C]``: ``[..., S]``."""
        with torch.autocast(command.device.type, enabled=False):  # millimetres are lost in bfloat16
            return self.offset + command.float() @ self.gain

    def measure(self, features: Tensor, command: Tensor) -> tuple[Tensor, Tensor]:
        """Return the measured numbers ``[B, F, S]`` and their standard deviations, in the robot's units."""
        mean, log_variance = self(features, command)
        return self.from_command(command) + self.deviation * mean, self.deviation * (0.5 * log_variance).exp()

    def loss(
        self, features: Tensor, command: Tensor, state: Tensor, valid: Tensor, count: Tensor | None = None
    ) -> Tensor:
        """Negative log-likelihood per number (nats) of measured ``state`` ``[B, F, S]`` over ``valid`` frames ``[B, F]``.

        ``count`` as of :func:`opening_loss`.
        """
        mean, log_variance = self(features, command)
        left = (state - self.from_command(command)) / self.deviation
        value = gaussian_nll(mean, log_variance, left) * valid[..., None]
        return value.sum() / (valid_count(valid, count) * value.shape[-1])


def gaussian_nll(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Negative log-density of ``target`` under a Gaussian, elementwise."""
    return 0.5 * (log_variance + (target - mean).square() * (-log_variance).exp() + math.log(2 * math.pi))


class OutcomeHead(nn.Module):
    """A recurrent cell over findings of size ``width``, with a state (belief) of size ``hidden``, ``b``."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.into = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def blank(self, rows: int) -> Tensor:
        """Return the belief before the first frame ``[B, b]``."""
        weight = self.out.weight
        return torch.zeros(rows, self.hidden, dtype=weight.dtype, device=weight.device)

    def forward(self, findings: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[B, F]`` of findings ``[B, F, width]`` and belief ``[B, b]``, and the belief after them."""
        # In float32 also under autocast: a belief lasts a whole episode.
        with torch.autocast(findings.device.type, enabled=False):
            x = self.into(findings.float())
            recurrent, last = self.memory(x, belief[None])
            return self.out(x + recurrent).squeeze(-1), last[0]


class OutcomeEnsemble(nn.Module):
    """``ensemble_size`` (``J``) outcome heads that read the same findings, each with its own belief."""

    def __init__(self, width: int, hidden: int, ensemble_size: int):
        super().__init__()
        # The attribute's name is part of the keys of stored weights.
        self.jurors = nn.ModuleList([OutcomeHead(width, hidden) for _ in range(ensemble_size)])

    @property
    def members(self) -> list[OutcomeHead]:
        """The heads, typed."""
        return cast("list[OutcomeHead]", list(self.jurors))

    def blank(self, rows: int) -> Tensor:
        """Return the beliefs before the first frame ``[B, J b]``, side by side."""
        return torch.cat([member.blank(rows) for member in self.members], dim=-1)

    def forward(self, findings: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Return each head's logits ``[J, B, F]`` and the beliefs after the frames."""
        parts = belief.chunk(len(self.jurors), dim=-1)
        results = [member(findings, part.contiguous()) for member, part in zip(self.members, parts, strict=True)]
        return torch.stack([logit for logit, _ in results]), torch.cat([after for _, after in results], dim=-1)


def ensemble_success(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over members of the probability ``[B, F]``, from logits ``[J, B, F]``."""
    probability = torch.sigmoid(logits)
    return probability.mean(dim=0), probability.std(dim=0, correction=0)


def named_as_ensemble(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a world model's weights; a single outcome head gets the names of an ensemble of one."""
    single = re.compile(r"^outcome\.(?=into\.|memory\.|out\.)")
    return {single.sub("outcome.jurors.0.", name): value for name, value in tensors.items()}


def outcome_loss(logit: Tensor, success: Tensor, valid: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over valid frames; ``logit``, bool ``success`` and bool ``valid`` are ``[B, T]``.

    ``count`` as of :func:`opening_loss`.
    """
    loss = F.binary_cross_entropy_with_logits(logit, success.float(), reduction="none")
    return (loss * valid).sum() / valid_count(valid, count)
