"""Chunks drawn with one stochastic step, whose log-probability is exact, for flow, diffusion and regression policies.

A sampler turns noise into a chunk in ``S`` steps. One step, drawn uniformly among those that may be noisy, adds
Gaussian noise; the others are deterministic (πRL's Flow-SDE, arXiv:2510.25889). Given that step and the sample before
it, the chunk's log-probability is a Gaussian's, number by number, at the cost of one evaluation::

    log π = log N(x_{k+1}; μ_θ(x_k, k, obs), s_k²)

A policy that regresses its chunk is the case ``S = 1``. The *trace* of a draw is one float row per chunk: the step's
number, the sample before it, the sample after it.

Shapes legend: ``B`` rows, ``S`` steps, ``H × D`` numbers of a sample, as the network pads them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.diffusion.sde import gaussian_log_density


class StepSampler(Protocol):
    """A policy's own sampler, one step at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        """``H`` and ``D``."""
        ...

    @property
    def steps(self) -> int:
        """Steps from noise to chunk."""
        ...

    @property
    def noisy(self) -> Sequence[int]:
        """Steps that may be the stochastic one."""
        ...

    def encode(self, batch: Any) -> Any:
        """Compute the input of all steps: the observation's features, or the keys and values of its tokens."""
        ...

    def transition(self, seen: Any, x: Tensor, step: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[B, H, D]`` after ``step [B]``, and its deviation; ``temperature [B]`` scales the noise."""
        ...


def pack_trace(own: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Join the parts of a trace, float32 ``[B, 1 + 2 H D]``."""
    return torch.cat([own[:, None].float(), before.flatten(1), after.flatten(1)], dim=1)


def unpack_trace(trace: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Step int64 ``[B]``, samples before and after it ``[B, H, D]``; SettingError: rows of another length."""
    size = shape[0] * shape[1]
    if trace.ndim != 2 or trace.shape[1] != 1 + 2 * size:
        raise SettingError(f"token: a chunk's trace has {1 + 2 * size} numbers, got {list(trace.shape)}")
    before, after = (part.unflatten(1, shape) for part in trace[:, 1:].split(size, dim=1))
    return trace[:, 0].round().long(), before, after


def draw_chunk(
    sampler: StepSampler, seen: Any, start: Tensor, fresh: Tensor, own: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample chunks ``[B, H, D]``, traces, and log-densities ``[B, H, D]`` (0 at temperature 0).

    ``seen`` is :meth:`StepSampler.encode`'s, ``own`` int64 ``[B]`` the stochastic step; ``start`` and ``fresh`` are
    standard normal ``[B, H, D]``, of the beginning and of that step.
    """
    x, before, landed, logp = start, start, start, torch.zeros_like(start)
    for k in range(sampler.steps):
        here = (own == k)[:, None, None]
        step = torch.full_like(own, k)
        mean, std = sampler.transition(seen, x, step, temperature * (own == k).to(x))
        after = mean + std * fresh
        before, landed = torch.where(here, x, before), torch.where(here, after, landed)
        if temperature > 0:
            safe = torch.where(here, std, 1.0)  # the other rows drew nothing
            logp = torch.where(here, gaussian_log_density(after, mean, safe), logp)
        x = after
    return x, pack_trace(own, before, landed), logp


def trace_log_prob(sampler: StepSampler, seen: Any, trace: Tensor, temperature: float) -> Tensor:
    """Log-density ``[B, H, D]`` of the chunks of :func:`draw_chunk`, with gradient; ``temperature`` is above 0."""
    own, before, after = unpack_trace(trace, sampler.shape)
    mean, std = sampler.transition(seen, before, own, torch.full_like(before[:, 0, 0], temperature))
    return gaussian_log_density(after, mean, std)
