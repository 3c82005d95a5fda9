"""Bellman targets and the losses towards them, shared by all critics.

Shapes legend: ``B`` rows, ``N`` critics.
"""

from __future__ import annotations

import torch
from torch import Tensor


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, discount: float) -> Tensor:
    """Return y = r + γ (1 − terminated) v(s'), ``[B]``; truncated rows bootstrap like any other."""
    return reward + discount * torch.where(terminated, 0.0, next_value)


def td_loss(q: Tensor, target: Tensor) -> Tensor:
    """Σ_i mean_b (Q_i − y)²: ``q`` is ``[N, B]``, ``target`` ``[B]``."""
    return (q - target).square().mean(dim=1).sum()
