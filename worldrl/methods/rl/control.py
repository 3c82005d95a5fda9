"""Update controllers: how far the weights may go in a step, and what follows an iteration's steps."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs, Stateful
from worldrl.methods.rl.interfaces import POLICY, needs


@dataclass(frozen=True)
class Unchecked:
    """Every step is taken as it is.

    Equation: lr' = lr
    Paper: none
    """

    # called once an iteration's steps are taken, for weights that follow the trained ones.
    follow: Callable[[int], None] | None = None

    def before(self, logs: Mapping[str, Tensor]) -> float:
        """Take the step."""
        return 1.0

    def after(self, iteration: int) -> Logs:
        """Let the old weights follow."""
        if self.follow is not None:
            self.follow(iteration)
        return {}


@dataclass(frozen=True)
class KlStop(Unchecked):
    """Leave steps out once the weights are too far from the acting ones; the iteration's next step is measured anew.

    Equation: lr' = 0 where the sampled KL of a decision is above the limit, else lr
    Paper: PPO's early stop (1707.06347; Spinning Up)
    """

    limit: float = 0.02  # of the KL, in nats per decision.

    def before(self, logs: Mapping[str, Tensor]) -> float:
        """Take the step where the weights are near."""
        return float("approx_kl" not in logs or float(logs["approx_kl"]) <= self.limit)


@dataclass(frozen=True)
class EffectiveShare(Unchecked):
    """Shorten steps whose sample is effectively small, because few decisions have most of the ratio.

    Equation: lr' = lr sqrt(ESS / M), ESS = (Σ ρ)² / Σ ρ²
    Paper: VCPO (2602.17616)
    """

    def before(self, logs: Mapping[str, Tensor]) -> float:
        """Scale the step."""
        return float(logs["effective_share"]) ** 0.5 if "effective_share" in logs else 1.0


@needs(POLICY)
@dataclass
class Verified:
    """Undo an iteration's steps where they lost more paired rollouts than they won: the same starts and noise, before and after.

    Equation: θ' = θ_kept where Σ_i (success_i(θ) - success_i(θ_kept)) < 0, else θ
    Paper: PIPO (2604.00860), which weighs the last update by a z-score of its rewards where this undoes it

    The paired rollouts are imagined, are not learned from, and cost as many as an iteration's own. The optimizer's moments stay.
    """

    policy: Stateful  # whose steps are verified.
    paired: Callable[[], Tensor]  # plays the paired rollouts: bool ``[B]``, which of them succeed.
    follow: Callable[[int], None] | None = None  # as of :class:`Unchecked`.
    wins: list[bool] = field(default_factory=list[bool])  # of the kept weights.
    kept: dict[str, Any] = field(default_factory=dict[str, Any])  # those weights; none before the first step.

    def before(self, logs: Mapping[str, Tensor]) -> float:
        """Take the step; measure first where nothing was measured."""
        if not self.kept:
            self._keep(self.paired().tolist())
        return 1.0

    def after(self, iteration: int) -> Logs:
        """Keep the weights or go back to the kept ones."""
        if not self.kept:  # no step was taken
            return {}
        now = self.paired().tolist()
        gain = sum(now) - sum(self.wins)
        if gain < 0:
            self.policy.load_state_dict(copy.deepcopy(self.kept))
        else:
            self._keep(now)
        if self.follow is not None:
            self.follow(iteration)
        return {"paired_gain": torch.tensor(gain / len(now)), "undone": torch.tensor(float(gain < 0))}

    def _keep(self, wins: list[bool]) -> None:
        self.wins, self.kept = wins, copy.deepcopy(dict(self.policy.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """What is kept."""
        return {"wins": self.wins, "kept": self.kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore it."""
        self.wins, self.kept = list(state_dict["wins"]), dict(state_dict["kept"])
