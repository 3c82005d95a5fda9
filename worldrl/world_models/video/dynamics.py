"""Interface of a dynamics backend: it samples the frames of one chunk, and computes a loss on recorded ones.

A backend owns network, noise levels and sampler: the rectified flows of ``flow_transformer`` and of Wan and the EDM
of ``edm_unet`` share no level and no step. A Wan latent frame stands for four frames.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions of ``A`` numbers, ``c h w``
latent, ``n`` tokens, ``d`` width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.rng import part_of
from worldrl.core.training.ranks import world_size


@dataclass(frozen=True)
class ChunkLoss:
    """Loss of one recorded chunk."""

    loss: Tensor  # scalar.
    features: Tensor  # ``[B, n, d]`` for the heads, from the evaluations that gave the loss.
    # noise share of those evaluations in [0, 1]: ``[B, F]``, or ``[B, 1]`` where all frames of a row are alike. Of the
    # whole batch, where these rows are a part of one (``core.rng.Part``).
    level: Tensor
    logs: Logs  # detached scalars.


class Dynamics(Protocol):
    """One chunk of future latents from the reference, the memory and the actions.

    Implementations are modules, deterministic given the noise, and never mix rows.
    """

    @property
    def noise_frames(self) -> int:
        """Frames of standard normal noise that :meth:`sample` takes per row."""
        ...

    def sample(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Latents ``[B, F, c, h, w]`` and the features ``[B, n, d]`` of their evaluations.

        ``noise``: ``[B, noise_frames, c, h, w]``; ``reference``: the episode's first latent; ``memory``: ``[B, K, c,
        h, w]``, the newest one last; ``action``: ``[B, L, 2A]``, each scaled action with its scaled command, or
        :func:`hide_actions` of it.
        """
        ...

    def loss(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChunkLoss:
        """Compare with recorded latents ``clean`` ``[B, F, c, h, w]`` where ``valid`` ``[B, F]``, at drawn levels."""
        ...


def hide_actions(action: Tensor, instruction: Tensor, hidden: Tensor) -> Tensor:
    """Replace the actions ``[B, L, 2A]`` of rows ``hidden``, bool ``[B]``, by the embedded instruction ``[B, d]``.

    Returns ``[B, L, 2A + 1 + d]``: the actions, 1 where they are hidden, the instruction; else 0.
    """
    flag = hidden.to(action.dtype)[:, None, None]
    # With both, motion would follow from the instruction, and a bad action would be imagined to succeed.
    given = (flag * instruction[:, None]).to(action.dtype)
    parts = (torch.where(hidden[:, None, None], 0, action), flag, given)
    return torch.cat([part.expand(-1, action.shape[1], -1) for part in parts], dim=-1)


def motion_weight(target: Tensor, now: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Weight places by their change within the chunk, ``[B, F, 1, h, w]`` with mean 1 over the batch.

    A place that changed from ``now [B, 1, c, h, w]`` by its own scale has the weight ``strength`` on top of 1.
    Where the ``generator`` draws for a part of the batch, the mean is over the rows of all processes.
    """
    change = (target - now).square().mean(dim=2, keepdim=True).clamp(max=1)
    weight = 1 + strength * change
    mean = weight.mean()
    if generator is not None and part_of(generator).count > 1 and world_size() > 1:
        from worldrl.core.training.processes import total

        mean = total(mean.clone()) / world_size()
    return weight / mean
