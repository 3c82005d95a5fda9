"""What a dynamics backend is: it samples the frames of one chunk, and says how wrong it is about recorded ones.

A backend owns its network, its noise levels and its sampler, because those belong together: the rectified flow of
``flow_transformer`` and the EDM of ``edm_unet`` share no level and no step. What surrounds it does not know which one it
is: :class:`~worldrl.world_models.video.model.VideoWorldModel` keeps the rows, the heads read the features, the training
cuts the windows and lets the model imagine ahead.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions of ``A`` numbers, ``c h w`` latent,
``n`` tokens, ``d`` width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs


@dataclass(frozen=True)
class ChunkLoss:
    """What a backend says of one recorded chunk.

    Attributes:
        loss: scalar.
        features: ``[B, n, d]`` for the heads, from the evaluations that gave the loss.
        level: how much of the signal those evaluations did not see, in [0, 1]: ``[B, F]``, or ``[B, 1]`` where all
            frames of a row are alike.
        logs: detached scalars.
    """

    loss: Tensor
    features: Tensor
    level: Tensor
    logs: Logs


class Dynamics(Protocol):
    """One chunk of future latents from the reference, the memory and the actions.

    Implementations are modules, deterministic given the noise, and never mix rows.

    Attributes:
        width: ``d`` of the features.
        heads: attention heads that ``d`` is divided into.
    """

    width: int
    heads: int

    @property
    def noise_frames(self) -> int:
        """Frames of standard normal noise that :meth:`sample` takes per row."""
        ...

    def sample(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sample.

        Args:
            noise: ``[B, noise_frames, c, h, w]``.
            reference: latent of the episode's first frame ``[B, c, h, w]``.
            memory: newest latents ``[B, K, c, h, w]``, the last one is now.
            action: ``[B, L, 2A]``, each scaled action with the scaled command it leads to; a model that plans also
                takes what :func:`hide_actions` made of it.

        Returns:
            Float32 latents ``[B, F, c, h, w]`` and the features ``[B, n, d]`` of the evaluations that gave them.
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
    """Take the actions of some rows away and tell those rows the instruction instead.

    Rows with actions are not told it: what the robot does would follow from what it was asked to do, and a clumsy action
    would be imagined to succeed.

    Args:
        action: ``[B, L, 2A]``.
        instruction: embedded, ``[B, d]``.
        hidden: bool ``[B]``.

    Returns:
        ``[B, L, 2A + 1 + d]``: the actions, 1 where they are hidden, the instruction; 0 where a row does not have them.
    """
    flag = hidden.to(action.dtype)[:, None, None]
    told = (flag * instruction[:, None]).to(action.dtype)
    parts = (torch.where(hidden[:, None, None], 0, action), flag, told)
    return torch.cat([part.expand(-1, action.shape[1], -1) for part in parts], dim=-1)


def motion_weight(target: Tensor, now: Tensor, strength: float) -> Tensor:
    """Weight places by how much they change within the chunk.

    Args:
        target: future latents ``[B, F, c, h, w]``.
        now: newest memory latent ``[B, 1, c, h, w]``.
        strength: weight of a place that changed by its own scale, on top of 1.

    Returns:
        ``[B, F, 1, h, w]``, mean 1 over the batch.
    """
    change = (target - now).square().mean(dim=2, keepdim=True).clamp(max=1)
    weight = 1 + strength * change
    return weight / weight.mean()
