"""Update controllers: how far the weights may go in a step, and what follows an iteration's steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


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

    def after(self, iteration: int) -> None:
        """Let the old weights follow."""
        if self.follow is not None:
            self.follow(iteration)


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
