"""State head: predicts the measured numbers of each frame, with their uncertainty.

They lie near the command, and differ where the robot lags, holds something or is blocked. A linear map of the frame's
command and its change is fitted to the recordings once, by least squares. The head predicts what is left from the
features of all views, as a Gaussian: numbers that no image shows have a wide one.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``S`` measured numbers, ``C`` numbers of a frame's command and its
change, ``n`` tokens, ``d`` width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldrl.nn.attention import Attention
from worldrl.nn.blocks import Mlp

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
        below = LARGEST_LOG_VARIANCE - functional.softplus(LARGEST_LOG_VARIANCE - log_variance)
        return mean, LEAST_LOG_VARIANCE + functional.softplus(below - LEAST_LOG_VARIANCE)

    def from_command(self, command: Tensor) -> Tensor:
        """Return what the linear map makes of commands ``[..., C]``: ``[..., S]``."""
        with torch.autocast(command.device.type, enabled=False):  # millimetres are lost in bfloat16
            return self.offset + command.float() @ self.gain

    def measure(self, features: Tensor, command: Tensor) -> tuple[Tensor, Tensor]:
        """Return the measured numbers ``[B, F, S]`` and their standard deviations, in the robot's units."""
        mean, log_variance = self(features, command)
        return self.from_command(command) + self.deviation * mean, self.deviation * (0.5 * log_variance).exp()

    def loss(self, features: Tensor, command: Tensor, state: Tensor, valid: Tensor) -> Tensor:
        """Negative log-likelihood per number (nats) of measured ``state`` ``[B, F, S]`` over ``valid`` frames ``[B, F]``."""
        mean, log_variance = self(features, command)
        left = (state - self.from_command(command)) / self.deviation
        value = gaussian_nll(mean, log_variance, left) * valid[..., None]
        return value.sum() / (valid.sum().clamp_min(1) * value.shape[-1])


def gaussian_nll(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Negative log-density of ``target`` under a Gaussian, elementwise."""
    return 0.5 * (log_variance + (target - mean).square() * (-log_variance).exp() + math.log(2 * math.pi))
