"""Do the frames show the commanded motion? Rewards that compare a command with what inverse dynamics reads off a video.

They suit a world that is told its actions; ``rewards.executability`` suits one that plans by itself.

Shapes legend: ``N`` videos, ``T`` frames, ``D`` coordinates.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def action_similarity_frames(decoded: Tensor, commanded: Tensor, deviation: Tensor, temperature: float = 1.0) -> Tensor:
    """RLinf's reward: r_t = exp(-mean_d (z(decoded_t) - z(commanded_t))² / temperature).

    Args:
        decoded: ``[N, T, D]``.
        commanded: ``[N, T, D]``, in the same units.
        deviation: ``[D]`` of the inverse dynamics' training targets, which z divides by (their means cancel).
        temperature: 1 by default there, 2 in its configuration for 14 joints.

    Returns:
        ``[N, T]`` in (0, 1].
    """
    error = ((decoded - commanded) / deviation).square().mean(dim=-1)
    return (-error / temperature).exp()


def action_similarity(decoded: Tensor, commanded: Tensor, deviation: Tensor, temperature: float = 1.0) -> Tensor:
    """The same of whole videos, ``[N]``: the mean over frames."""
    return action_similarity_frames(decoded, commanded, deviation, temperature).mean(dim=1)


def surprise(decoded: Tensor, deviation: Tensor, commanded: Tensor) -> Tensor:
    """Mean square error in units of what the inverse dynamics expects to err, ``[N, T]``: 1 on honest frames.

    Args:
        decoded: means ``[N, T, D]``.
        deviation: predicted standard deviations ``[N, T, D]``.
        commanded: ``[N, T, D]``.
    """
    return ((decoded - commanded) / deviation).square().mean(dim=-1)


def consistency(decoded: Tensor, proposed: Tensor, deviation: Tensor, *, gripper: int = 6, beta: float = 0.1) -> Tensor:
    """Minus the disagreement of a proposed chunk of actions with the one decoded from its dream, ``[N]``.

    Smooth-L1 over the motion numbers, each divided by its standard deviation, plus the share of steps at which the signs
    of the gripper differ.

    Args:
        decoded: actions read off the dream ``[N, T, D]``.
        proposed: the policy's ``[N, T, D]``.
        deviation: of recorded actions ``[D]``.
        gripper: its place among the ``D`` numbers.
        beta: where smooth-L1 turns linear.
    """
    motion = [d for d in range(decoded.shape[-1]) if d != gripper]
    read, asked = ((part / deviation)[..., motion] for part in (decoded, proposed))
    off = F.smooth_l1_loss(read, asked, beta=beta, reduction="none").mean(dim=(1, 2))
    signs = (decoded[..., gripper] > 0) != (proposed[..., gripper] > 0)
    return -(off + signs.to(off.dtype).mean(dim=1))
