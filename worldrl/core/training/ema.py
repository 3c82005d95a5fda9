"""An exponential moving average of a module's weights."""

import copy
from typing import Any

import torch
from torch import nn

from worldrl.core.errors import SettingError


class Ema(nn.Module):
    """Averages a module's parameters: after update t, θ' ← d θ' + (1 - d) θ with d = min(decay, (1 + t) / (10 + t)).

    The ramp forgets the random initial weights; buffers are copied. ``module`` is the averaged copy; the number of
    updates is part of ``state_dict``. SettingError for a decay outside [0, 1).
    """

    def __init__(self, source: nn.Module, decay: float) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise SettingError(f"ema decay: must be in [0, 1), got {decay}")
        self.decay = decay
        self.updates = 0
        self.module = copy.deepcopy(source).eval().requires_grad_(False)
        self._source = (source,)  # a tuple hides it from nn.Module: it must not enter state_dict twice

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the source's present weights; call it after each optimizer step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        (source,) = self._source
        for average, parameter in zip(self.module.parameters(), source.parameters(), strict=True):
            average.lerp_(parameter.detach().to(average.dtype), 1 - decay)
        for average, buffer in zip(self.module.buffers(), source.buffers(), strict=True):
            average.copy_(buffer)

    def train(self, mode: bool = True) -> "Ema":
        """Stay in evaluation mode whatever is asked."""
        return super().train(False)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the number of updates for ``state_dict``."""
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the number of updates."""
        self.updates = int(state["updates"])
