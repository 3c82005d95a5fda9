"""The same actions imagined again: would the dream have gone the same way with other noise?

A dream commits itself. Where the fingers close half beside an object, one sample shows it held, the next one not, and
from then on each is sure of itself. Asked a few times from the same start with the same actions, the model tells how
often it believes in the outcome: the disagreement of the denoiser, taken over the whole rollout. It needs neither the
policy nor a picture, so it costs less than the dream did.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``L`` control steps per chunk, ``N`` imagined frames, ``O`` opinions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import WorldModel
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord
from worldrl.rewards.success import debounced_score


@torch.no_grad()
def imagine_again(
    model: WorldModel, starts: Sequence[ResetRecord], action: Tensor, *, seed: int, opinion: int, batch: int = 128
) -> NDArray[np.float32]:
    """Imagine given actions with noise of their own.

    Args:
        model: imagines.
        starts: ``E`` states to begin at.
        action: float32 ``[E, T, 7]``, ``T`` whole chunks.
        seed: root of the noise.
        opinion: number of this imagination; each has other noise.
        batch: rollouts at once.

    Returns:
        Probability of success ``[E, N]``.
    """
    parts = []
    for first in range(0, len(starts), batch):
        rows = slice(first, first + batch)
        state, found = model.start(starts[rows]), []
        for k, chunk in enumerate(action[rows].split(model.chunk_length, dim=1)):
            generators = [stream(seed, "opinion", opinion, first + row, k) for row in range(len(chunk))]
            state, imagined = model.imagine(state, chunk.contiguous(), generators=generators)
            found.append(imagined.success_prob.float().cpu().numpy())
        parts.append(np.concatenate(found, axis=1))
    return np.concatenate(parts)


def opinions(
    model: WorldModel, starts: Sequence[ResetRecord], action: Tensor, count: int, *, seed: int, debounce: int
) -> NDArray[np.float32]:
    """Ask ``count`` times; return the debounced scores ``[O, E]`` of :func:`worldrl.rewards.success.debounced_score`."""
    return np.stack(
        [debounced_score(imagine_again(model, starts, action, seed=seed, opinion=k), debounce) for k in range(count)]
    )
