"""Budget allocators: how many of an iteration's rollouts each start gets, at least two where groups are compared.

Shapes legend: ``N`` starts of an iteration; what is known of them is the Beta posterior of their rate of success.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.methods.rl.interfaces import MATES, SUCCESS, needs
from worldrl.methods.rl.records import StartRecords

LEAST = 2  # rollouts of each start


def uniform(records: StartRecords, starts: Tensor, budget: int) -> Tensor:
    """As many from each start.

    Equation: G_i = budget / N
    Paper: none
    """
    if budget % len(starts):
        raise SettingError(f"{budget} rollouts cannot be shared out alike among {len(starts)} starts")
    return torch.full((len(starts),), budget // len(starts))


@needs(MATES, SUCCESS)
def root_variance(records: StartRecords, starts: Tensor, budget: int) -> Tensor:
    """More from starts whose outcome is less certain, at least two from each.

    Equation: G_i = 2 + (budget - 2 N) sqrt(p_i (1 - p_i)) / sum, with p_i the posterior mean of success
    Paper: GDRO-Rollout's variance-optimal share (2601.19280)
    """
    alpha, beta = records.posterior(starts)
    return _in_shares((alpha * beta).sqrt() / (alpha + beta), budget, "root_variance")


@needs(MATES, SUCCESS)
def knapsack(records: StartRecords, starts: Tensor, budget: int) -> Tensor:
    """Share the rollouts out so that the expected value of all groups is largest.

    Equation: max Σ V(G_i, p_i), V(G, p) = (1 - p^G - (1 - p)^G) p (1 - p)², Σ G_i = budget, G_i >= 2
    Paper: Knapsack RL (2509.25849); rollouts cost alike, and V is concave in G, so that the best next one is exact
    """
    rate = _rate(records, starts)

    def gain(size: Tensor) -> Tensor:
        return (rate**size * (1 - rate) + (1 - rate) ** size * rate) * rate * (1 - rate) ** 2

    return _one_by_one(gain, len(starts), budget, "knapsack")


@needs(MATES, SUCCESS)
def shrinking_interval(
    records: StartRecords, starts: Tensor, budget: int, *, confidence: float = 0.95, bonus: float = 0.1
) -> Tensor:
    """Give the next rollout to the start whose interval of success it would shorten most, little known ones first.

    Equation: max h(n) - h(n + 1) + λ sqrt(log(1 + Σ n) / n), h(n) = t(n - 1) s / sqrt(n), n = rollouts known and planned
    Paper: XRPO's allocator (2510.06672), with s² = p (1 - p) of the posterior and λ = 0.1 (ours), without its seeding
    """
    from scipy.stats import t as student

    rate = _rate(records, starts)
    known = records.wins[starts] + records.losses[starts]
    deviation = (rate * (1 - rate)).sqrt()

    def half(count: Tensor) -> Tensor:
        quantile = torch.from_numpy(student.ppf((1 + confidence) / 2, (count - 1).numpy()))
        return quantile * deviation / count.sqrt()

    def gain(size: Tensor) -> Tensor:
        count = known + size
        return half(count) - half(count + 1) + bonus * (count.sum().log1p() / count).sqrt()

    return _one_by_one(gain, len(starts), budget, "shrinking_interval")


@needs(MATES, SUCCESS)
def equal_treatment(records: StartRecords, starts: Tensor, budget: int, *, most: float = 4.0) -> Tensor:
    """More from hard starts, until their groups weigh as much in the gradient as those with a rate of one half.

    Equation: G_i = 2 + (budget - 2 N) w_i / Σ w, w = S(1/2) / S(p) where p < 1/2, else 1, at most 4; S = 2 p (1 - p)
    Paper: DARS (2508.13755), its equal treatment, with the start's record in place of a first stage of rollouts
    """
    rate = _rate(records, starts)
    weight = torch.where(rate < 0.5, 1 / (4 * rate * (1 - rate)), 1.0).clamp_max(most)
    return _in_shares(weight, budget, "equal_treatment")


@needs(MATES, SUCCESS)
def hardness_weighted(records: StartRecords, starts: Tensor, budget: int, *, most: float = 4.0) -> Tensor:
    """More from hard starts, until their groups weigh more in the gradient the harder they are.

    Equation: G_i = 2 + (budget - 2 N) w_i / Σ w, w = 2 (1 - p) S(1/2) / S(p) = 1 / (2 p) where p < 1/2, else 1, at most 4
    Paper: DARS (2508.13755), its hardness-weighted schedule, with the start's record in place of a first stage of rollouts
    """
    rate = _rate(records, starts)
    return _in_shares((1 / (2 * rate)).clamp(1.0, most), budget, "hardness_weighted")


# --- what they share ---------------------------------------------------------------------------------------------------


def _rate(records: StartRecords, starts: Tensor) -> Tensor:
    alpha, beta = records.posterior(starts)
    return alpha / (alpha + beta)


def _rest(starts: int, budget: int, name: str) -> int:
    """Rollouts that are left once each start has its two."""
    rest = budget - LEAST * starts
    if rest < 0:
        raise SettingError(f"parts.budget={name} needs two rollouts of each of {starts} starts, got {budget}")
    return rest


def _in_shares(share: Tensor, budget: int, name: str) -> Tensor:
    """Two for each start, the rest in these shares; largest remainders get what is left over."""
    rest = _rest(len(share), budget, name)
    wanted = rest * share / share.sum()
    whole = wanted.floor().long()
    order = (wanted - whole).argsort(descending=True, stable=True)
    whole[order[: rest - int(whole.sum())]] += 1
    return LEAST + whole


def _one_by_one(gain: Callable[[Tensor], Tensor], starts: int, budget: int, name: str) -> Tensor:
    """Two for each start, then always one where it gains most; ``gain(size)`` is that of one more, ``[N]``."""
    size = torch.full((starts,), LEAST)
    for _ in range(_rest(starts, budget, name)):
        size[int(gain(size).argmax())] += 1
    return size
