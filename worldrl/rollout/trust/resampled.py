"""Resampled rollouts: the same start and actions imagined again with other noise.

A single imagined rollout has one outcome. Several, from the same start with the same actions, show how often the model
predicts it, and how far the images differ: the disagreement of the denoiser over a whole rollout. Resampling needs
neither the policy nor decoded images, so it costs less than the rollout.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``L`` control steps per chunk, ``N`` imagined frames, ``O``
resampled rollouts of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import WorldModel
from worldrl.core.rng import stream
from worldrl.core.storage.arrays import ArrayRecord
from worldrl.core.types import Imagined, ResetRecord
from worldrl.world_models.video.following import given_actions, roll_forward


@dataclass(frozen=True)
class ResampledRollouts(ArrayRecord):
    """``O`` further imaginations of the same actions.

    ``probability`` of success is float32 ``[O, E, N]``. ``uncertainty`` float32 ``[E, N]`` is that of the outcome
    ensemble, averaged over them. ``spread`` float32 ``[E, N]`` is the standard deviation of the latents over them,
    averaged over a frame's numbers.
    """

    probability: NDArray[np.float32]
    uncertainty: NDArray[np.float32]
    spread: NDArray[np.float32]


@torch.no_grad()
def resample_rollouts(
    model: WorldModel, starts: Sequence[ResetRecord], action: Tensor, count: int, *, seed: int, batch: int = 64
) -> ResampledRollouts:
    """Imagine actions float32 ``[E, T, A]`` (``T`` whole chunks) ``count`` times, each time with other noise.

    ``count`` must be at least 2, since one alone has no spread. ``batch`` rollouts are imagined at once, each ``count``
    times. ``seed`` is the root of the noise.
    """
    parts = [
        _resample(model, starts[i : i + batch], action[i : i + batch], count, seed, i)
        for i in range(0, len(starts), batch)
    ]
    probability, uncertainty, spread = zip(*parts, strict=True)
    return ResampledRollouts(np.concatenate(probability, axis=1), np.concatenate(uncertainty), np.concatenate(spread))


def _resample(
    model: WorldModel, starts: Sequence[ResetRecord], action: Tensor, count: int, seed: int, first: int
) -> tuple[NDArray[np.float32], ...]:
    act, chunks = given_actions(action, model.chunk_length), action.shape[1] // model.chunk_length

    def noise(sample: int, chunk: int) -> list[torch.Generator]:
        return [stream(seed, "opinion", sample, first + row, chunk) for row in range(len(starts))]

    samples = [roll_forward(model, model.start(starts), chunks, act, partial(noise, sample)) for sample in range(count)]
    compared = [_compared([imagined for _, imagined in found]) for found in zip(*samples, strict=True)]
    probability, uncertainty, spread = zip(*compared, strict=True)
    joined = torch.cat(probability, dim=2), torch.cat(uncertainty, dim=1), torch.cat(spread, dim=1)
    return tuple(values.numpy() for values in joined)


def _compared(samples: Sequence[Imagined]) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk's probabilities ``[O, B, F]``, uncertainty ``[B, F]`` and spread ``[B, F]``."""
    probability = torch.stack([imagined.success_prob.float() for imagined in samples])
    uncertainty = [torch.zeros_like(i.success_prob) if i.uncertainty is None else i.uncertainty for i in samples]
    latent = torch.stack([imagined.latent.float() for imagined in samples])
    spread = latent.std(dim=0).flatten(2).mean(dim=-1)[:, -probability.shape[2] :]
    return probability.cpu(), torch.stack(uncertainty).float().mean(dim=0).cpu(), spread.cpu()
