"""Dual RL (Sikchi et al., ICLR 2024): f-DVL for offline reinforcement learning, ReCOIL for imitation from mixed data.

Maximising return less an f-divergence to the data's visits has a convex dual in a value function alone. With the
conjugate over non-negative visit ratios, f*₊(y) = max_{x ≥ 0} x y − f(x):

    f-DVL   V:      (1 − λ) mean V(s) + λ τ mean max(f*₊((Q̄(s, a) − V(s))/τ), 0)
            Q:      Σ_i mean (Q_i(s, a) − r − γ (1 − terminated) V(s'))²
            actor:  −mean min(exp(β (Q̄ − V)), w_max) log π(a|s)

XQL's Gumbel loss is this with an exponential for f*, which grows too fast for large y. f-DVL replaces it:

    χ²:               f(x) = (x − 1)²    f*₊(y) = y + y²/4 for y ≥ −2, else −1
    total variation:  f(x) = ½|x − 1|    f*₊(y) = max(y, −½); for y > ½, where the conjugate is infinite, continued linearly

For V they are cut at 0, as in the authors' code (there y + y²/4 counts below −4 again). Uncut, their slope at 0 is 1. For
λ > ½, V would then exceed every Q by a constant (1.14 τ for χ² and λ = 0.7), which every backup adds once more.

ReCOIL imitates experts E with the help of other data S, without a discriminator and without rewards. It matches the
mixture βd + (1 − β)d^S to βd^E + (1 − β)d^S. With y = γ (1 − terminated) V(s') − Q(s, a), g(y) = f*₊(y) − y, and
(1 − γ) E_{d0} V written as E_E[V(s) − γ V(s')], its dual is

    ReCOIL  Q:      Σ_i β mean_E [V(s) − Q_i(s, a)] + mean_mix g(y_i)
            V:      IQL's expectile of Q̄ − V over the mixture;  actor as above, over the mixture

For χ² this makes Q = γV(s') + 2 β d^E/(β d^E + (1 − β) d^S): a pseudo-reward in [0, 2]. These equations are the standard
form of the dual; the authors' code of ReCOIL was not available, so details may differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, require_value
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions, concat
from worldrl.methods.offline.agent import Facts, gradient_step, require_rules
from worldrl.methods.offline.iql import Iql, WeightedCloningConfig
from worldrl.methods.offline.training import draw


def chi_square_conjugate(y: Tensor) -> Tensor:
    """f*₊ of f(x) = (x − 1)²: y + y²/4 where y ≥ −2, else −1; its slope is the visit ratio (1 + y/2)₊."""
    inside = y.clamp_min(-2)
    return inside + inside.square() / 4


def total_variation_conjugate(y: Tensor) -> Tensor:
    """f*₊ of f(x) = ½|x − 1| up to y = ½, continued linearly: max(y, −½)."""
    return y.clamp_min(-0.5)


def chi_square_cut(y: Tensor) -> Tensor:
    """max(y + y²/4, 0) for f-DVL's V: no slope between −4 and 0."""
    return (y + y.square() / 4).clamp_min(0)


def total_variation_cut(y: Tensor) -> Tensor:
    """max(y, 0), likewise."""
    return y.clamp_min(0)


CONJUGATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "chi_square": chi_square_conjugate,
    "total_variation": total_variation_conjugate,
}
CUT: Mapping[str, Callable[[Tensor], Tensor]] = {"chi_square": chi_square_cut, "total_variation": total_variation_cut}


@dataclass(frozen=True)
class FDvlConfig(WeightedCloningConfig):
    """Settings of :class:`FDvl`."""

    scale_reward: bool = True  # multiply rewards by the time limit over the range of recorded returns, as IQL does.
    divergence: str = "chi_square"  # chi_square or total_variation.
    # λ in [½, 1]; V approaches a maximum over the actions as λ approaches 1, the authors' value for locomotion.
    weight: float = 0.7
    random_actions: int = 0  # uniform actions per row that V learns from besides the recorded one; the authors take 1.
    divergence_scale: float = 1.0  # τ, in units of (scaled) value.

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.divergence in CONJUGATES, "agent.divergence", " or ".join(CONJUGATES), self.divergence)
        require_value(0.5 <= self.weight <= 1, "agent.weight", "in [0.5, 1]", self.weight)
        require_rules(self, "agent", {"zero or more": "random_actions", "positive": "divergence_scale"})


def dual_value_loss(advantage: Tensor, value: Tensor, conjugate: Callable[[Tensor], Tensor], weight: float) -> Tensor:
    """(1 − λ) mean V + λ mean f*(Q̄ − V), a scalar; its minimum has mean slope f*′ = (1 − λ)/λ."""
    return (1 - weight) * value.mean() + weight * conjugate(advantage).mean()


class FDvl(Iql):
    """IQL with the dual value loss in place of the expectile."""

    name: ClassVar[str] = "f_dvl"
    config_class: ClassVar[type[Any]] = FDvlConfig

    def value_rows(
        self, batch: Transitions, advantage: Tensor, value: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return Q̄ − V and V of the batch, then those of uniform actions at the same states."""
        times = self.config.random_actions
        if not times:
            return advantage, value
        obs = batch.obs.repeat(times, 1)
        shape = (len(obs), self.facts.action_size)
        action = 2 * torch.rand(shape, generator=self.draws(generator), device=obs.device) - 1
        with torch.no_grad():
            q = self.target_critic(obs, action).min(dim=0).values
        there = self.values(obs)
        return torch.cat([advantage, q - there]), torch.cat([value, there])

    def value_loss(self, advantage: Tensor, value: Tensor) -> Tensor:
        """Return the loss of V from Q̄ − V and V, ``[B]`` each."""
        scale = self.config.divergence_scale
        conjugate = CUT[self.config.divergence]
        return scale * dual_value_loss(advantage / scale, value / scale, conjugate, self.config.weight)


@dataclass(frozen=True)
class RecoilConfig(WeightedCloningConfig):
    """Settings of :class:`Recoil`; rewards are never read."""

    expectile: float = 0.7  # τ of V.
    expert_fraction: float = 0.1  # share of the dataset's episodes, best returns first, that count as the expert's.
    mixing: float = 0.5  # β, share of expert rows in the mixture.
    divergence: str = "chi_square"  # chi_square or total_variation.

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rules(self, "agent", {"in (0, 1)": "expectile mixing", "in (0, 1]": "expert_fraction"})
        require_value(self.divergence in CONJUGATES, "agent.divergence", " or ".join(CONJUGATES), self.divergence)


def recoil_loss(
    q_expert: Tensor,
    value_expert: Tensor,
    q_mix: Tensor,
    next_value_mix: Tensor,
    *,
    conjugate: Callable[[Tensor], Tensor],
    mixing: float,
    discount: float,
) -> Tensor:
    """Return Σ_i β mean_E [V(s) − Q_i] + mean_mix g(γ V(s') − Q_i), of ``[N, B_E]``, ``[B_E]``, ``[N, B]`` and ``[B]``.

    V(s) is a constant that only keeps the loss near zero; V(s') is 0 where terminated.
    """
    y = discount * next_value_mix - q_mix
    return mixing * (value_expert - q_expert).mean(dim=1).sum() + (conjugate(y) - y).mean(dim=1).sum()


class Recoil(Iql):
    """Imitation of the best episodes with the help of all; the ``expert`` rows are needed to learn, not to act."""

    name: ClassVar[str] = "recoil"
    config_class: ClassVar[type[Any]] = RecoilConfig
    needs: ClassVar[tuple[str, ...]] = ("expert",)
    value: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride]
    """V counts pseudo-rewards, so nothing here predicts a return."""

    def __init__(self, config: RecoilConfig, facts: Facts, *, expert: Transitions | None = None) -> None:
        super().__init__(config, facts)
        self.expert = expert
        self.expert_rows = 0

    @classmethod
    def reward_scale(cls, config: Any, facts: Facts) -> float:
        """Return 1: no reward is read."""
        return 1.0

    def update(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one step on expert rows joined with the batch, in this order. SettingError without expert rows."""
        if self.expert is None:
            raise SettingError("recoil imitates: make it with expert=..., the expert's rows")
        share = self.config.mixing / (1 - self.config.mixing)
        self.expert_rows = max(1, round(share * len(batch)))
        expert = draw(self.expert, self.expert_rows, generator=self.draws(generator))
        return super().update(concat([expert, batch]), generator=generator)

    def _update_critic(self, batch: Transitions) -> Tensor:
        with torch.no_grad():
            value = self.values(batch.obs[: self.expert_rows])
            next_value = torch.where(batch.terminated, 0.0, self.values(batch.next_obs))
        q = self.critic(batch.obs, batch.action)
        loss = recoil_loss(
            q[:, : self.expert_rows],
            value,
            q,
            next_value,
            conjugate=CONJUGATES[self.config.divergence],
            mixing=self.config.mixing,
            discount=self.config.discount,
        )
        gradient_step(self.optimizers["critic"], loss)
        return loss
