"""Proximal policies: weights that follow the trained ones, for losses that measure how far a step goes from them."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.types import Likelihood, PolicyObs

EWMA_DECAY = 0.889
"""β of PPO-EWMA: the average looks back on about nine steps."""


class Follower:
    """A copy of a policy that follows it step by step, or is renewed at the end of each iteration.

    ``decay`` is β of the bias-corrected average, w ← β w + 1, θ̄ ← θ̄ + (θ - θ̄) / w; None: no average.
    """

    def __init__(self, policy: TrainablePolicy, decay: float | None = None) -> None:
        self.policy, self.decay, self.mass = policy, decay, 0.0
        self.copy = copy.deepcopy(policy).eval()

    @torch.no_grad()
    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float) -> Likelihood:
        """What the copy thinks of given draws; an average first takes in the weights of this moment."""
        if self.decay is not None:
            self.mass = self.decay * self.mass + 1
            self._move(1 / self.mass)
        return self.copy.likelihood(obs, token, temperature=temperature)

    @torch.no_grad()
    def renew(self, iteration: int) -> None:
        """Follow once an iteration's steps are taken, unless the copy is an average."""
        if self.decay is None:
            self._move(1.0)

    def _move(self, share: float) -> None:
        for old, new in zip(self.copy.parameters(), self.policy.parameters(), strict=True):
            old.lerp_(new.detach(), share)

    def state_dict(self) -> dict[str, Any]:
        """Weights of the copy, and the mass of an average."""
        return {"mass": self.mass, "copy": self.copy.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore them."""
        self.mass = state_dict["mass"]
        self.copy.load_state_dict(state_dict["copy"])
