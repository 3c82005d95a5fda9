"""Bellman targets and the losses towards them, shared by all critics."""

import torch
from torch import Tensor

from worldrl.core.errors import require_value


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, discount: float) -> Tensor:
    """Return y = r + γ (1 − terminated) v(s'), ``[B]``; truncated rows bootstrap like any other."""
    return reward + discount * torch.where(terminated, 0.0, next_value)


def td_loss(q: Tensor, target: Tensor) -> Tensor:
    """Σ_i mean_b (Q_i − y)²: ``q`` is ``[N, B]``, ``target`` ``[B]``."""
    return (q - target).square().mean(dim=1).sum()


def bounded(target: Tensor, floor: float | None, ceiling: float | None) -> Tensor:
    """Clamp targets ``[B]`` to the range of returns, outside which they are errors that later targets would inherit."""
    return target if floor is None and ceiling is None else target.clamp(floor, ceiling)


def require_bounds(floor: float | None, ceiling: float | None) -> None:
    """SettingError unless the ceiling is above the floor."""
    room = floor is None or ceiling is None or floor < ceiling
    require_value(room, "agent.ceiling", f"above agent.floor={floor}", ceiling)
