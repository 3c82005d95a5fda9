"""The same actions imagined again: would the dream have gone the same way with other noise?

A dream commits itself. Asked a few times from the same start with the same actions, the model tells how often it
believes in the outcome, and how far its pictures come apart: the disagreement of the denoiser over a whole rollout. It needs
neither the policy nor a picture, so it costs less than the dream did.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``L`` control steps per chunk, ``N`` imagined frames, ``O`` opinions.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import WorldModel
from worldrl.core.rng import stream
from worldrl.core.storage.atomic import write_file
from worldrl.core.types import Imagined, ResetRecord


@dataclass(frozen=True)
class ResampledRollouts:
    """What ``O`` further imaginations of the same actions say.

    Attributes:
        probability: of success, float32 ``[O, E, N]``.
        uncertainty: how far the outcome jurors are apart, mean over the opinions, float32 ``[E, N]``.
        spread: standard deviation of the latents over the opinions, mean over a frame's numbers, float32 ``[E, N]``.
    """

    probability: NDArray[np.float32]
    uncertainty: NDArray[np.float32]
    spread: NDArray[np.float32]

    def save(self, file: Path) -> None:
        """Write all arrays into one ``.npz`` file, whole or not at all."""
        data = io.BytesIO()
        np.savez_compressed(data, **{field.name: getattr(self, field.name) for field in fields(self)})
        write_file(file, data.getvalue())

    @classmethod
    def load(cls, file: Path) -> ResampledRollouts:
        """Read :meth:`save`'s file."""
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as data:
            return cls(**{field.name: data[field.name] for field in fields(cls)})


@torch.no_grad()
def resample_rollouts(
    model: WorldModel, starts: Sequence[ResetRecord], action: Tensor, count: int, *, seed: int, batch: int = 64
) -> ResampledRollouts:
    """Imagine given actions ``count`` times, each time with other noise.

    Args:
        model: imagines.
        starts: ``E`` states to begin at.
        action: float32 ``[E, T, A]``, ``T`` whole chunks.
        count: opinions ``O``, at least 2: one alone has no spread.
        seed: root of the noise.
        batch: rollouts at once, each ``count`` times.
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
    states = [model.start(starts) for _ in range(count)]
    chunks: list[tuple[Tensor, Tensor, Tensor]] = []
    for k, chunk in enumerate(action.split(model.chunk_length, dim=1)):
        heard: list[Imagined] = []
        for opinion, state in enumerate(states):
            generators = [stream(seed, "opinion", opinion, first + row, k) for row in range(len(starts))]
            states[opinion], imagined = model.imagine(state, chunk.contiguous(), generators=generators)
            heard.append(imagined)
        chunks.append(_compared(heard))
    probability, uncertainty, spread = zip(*chunks, strict=True)
    return (
        torch.cat(probability, dim=2).numpy(),
        torch.cat(uncertainty, dim=1).numpy(),
        torch.cat(spread, dim=1).numpy(),
    )


def _compared(heard: Sequence[Imagined]) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk's probabilities ``[O, B, F]``, doubt ``[B, F]`` and spread ``[B, F]``."""
    probability = torch.stack([imagined.success_prob.float() for imagined in heard])
    uncertainty = [torch.zeros_like(i.success_prob) if i.uncertainty is None else i.uncertainty for i in heard]
    latent = torch.stack([imagined.latent.float() for imagined in heard])
    spread = latent.std(dim=0).flatten(2).mean(dim=-1)[:, -probability.shape[2] :]
    return probability.cpu(), torch.stack(uncertainty).float().mean(dim=0).cpu(), spread.cpu()
