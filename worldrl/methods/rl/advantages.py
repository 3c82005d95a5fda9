"""Advantage estimators: how much better than its group mates a rollout turned out; groups may have any sizes.

Each returns ``[T, B]``; one of whole rollouts repeats itself over time.

Shapes legend: ``B`` rollouts, ``N`` groups, ``T`` decisions in time; ``group`` int64 ``[B]`` with ids 0..N-1.
"""

import torch
from torch import Tensor

from worldrl.methods.rl.groups import group_mean, group_sum, mates_mean
from worldrl.methods.rl.interfaces import MATES, SUCCESS, SURPRISE, Trace, given, needs

EPS = 1e-6
BATCH_EPS = 1e-4  # added to the deviation of a whole batch, as Flow-GRPO and GDPO do


def group_advantage(value: Tensor, group: Tensor) -> Tensor:
    """(R - mean_g) / (std_g + eps), ``[B]``, with the sample deviation (WoVR's code); 0 where all values are equal."""
    return _by_group(value, group, value, group)


def _by_group(value: Tensor, group: Tensor, pool: Tensor, pool_group: Tensor) -> Tensor:
    mean = group_mean(pool, pool_group)
    count = group_sum(pool.new_ones(len(pool)), pool_group)
    variance = group_sum((pool - mean[pool_group]).square(), pool_group) / (count - 1).clamp_min(1)
    return (value - mean[group]) / (variance.sqrt() + EPS)[group]


def _by_batch(value: Tensor, group: Tensor, pool: Tensor, pool_group: Tensor) -> Tensor:
    return (value - group_mean(pool, pool_group)[group]) / (pool.std(correction=0) + BATCH_EPS)


@needs(MATES)
def group_std(value: Tensor, trace: Trace) -> Tensor:
    """Each group's z-score.

    Equation: A_i = (R_i - mean_g) / (std_g + 1e-6)
    Paper: GRPO (DeepSeekMath, 2402.03300)
    """
    pool, pool_group = trace.explored or (value, trace.group)
    return _by_group(value, trace.group, pool, pool_group).expand(trace.valid.shape)


@needs(MATES)
def batch_std(value: Tensor, trace: Trace) -> Tensor:
    """Centred in the group, divided by the deviation of the whole batch: a group of equals stays small.

    Equation: A_i = (R_i - mean_g) / (std_batch + 1e-4)
    Paper: Flow-GRPO's global_std (2505.05470); Lite PPO (2508.08221), BroRL (2510.01180), GDPO's last step (2601.05242)

    Lite PPO also weighs tokens alike (``length_normalise=false``), BroRL takes large groups (``group_size``).
    """
    pool, pool_group = trace.explored or (value, trace.group)
    return _by_batch(value, trace.group, pool, pool_group).expand(trace.valid.shape)


@needs(MATES)
def mean_only(value: Tensor, trace: Trace) -> Tensor:
    """Centred in the group, without a deviation.

    Equation: A_i = R_i - mean_g
    Paper: Dr. GRPO (2503.20783); WoVR's text
    """
    pool, pool_group = trace.explored or (value, trace.group)
    return (value - group_mean(pool, pool_group)[trace.group]).expand(trace.valid.shape)


def as_given(value: Tensor, trace: Trace) -> Tensor:
    """The value itself: for mixes that have normalised already.

    Equation: A_i = R_i
    Paper: none
    """
    return value.expand(trace.valid.shape)


@needs(MATES)
def leave_one_out(value: Tensor, trace: Trace) -> Tensor:
    """Compared with the group mates alone; one without mates is compared with 0.

    Equation: A_i = R_i - mean of the mates' R
    Paper: RLOO (2402.14740)
    """
    return (value - mates_mean(value, trace.group)).expand(trace.valid.shape)


@needs(MATES)
def median(value: Tensor, trace: Trace) -> Tensor:
    """Centred at the group's median, which few rollouts move less than its mean; scaled by the mean distance from it.

    Equation: A_i = (R_i - median_g) / (mean_g |R - median_g| + 1e-6)
    Paper: MC-GRPO (2601.22582), whose median distance would be 0 for binary rewards
    """
    pool, pool_group = trace.explored or (value, trace.group)
    middle = pool.new_zeros(int(pool_group.max()) + 1)
    for number in pool_group.unique():
        middle[number] = pool[pool_group == number].quantile(0.5)
    away = group_mean((pool - middle[pool_group]).abs(), pool_group)
    return ((value - middle[trace.group]) / (away + EPS)[trace.group]).expand(trace.valid.shape)


# --- mixtures of scales, and other baselines ---------------------------------------------------------------------------


@needs(MATES, SUCCESS)
def mixed_certainty(value: Tensor, trace: Trace) -> Tensor:
    """Divide by the deviation where a group is uncertain, and by the mean where it is nearly certain.

    Equation: A_i = (1 - λ) (R_i - mean_g) / (std_g + 1e-6) + λ (R_i - mean_g) / mean_g, λ = 1 - 4 p (1 - p), p = mean_g success
    Paper: MAPO (2509.18849)

    Where the mean is 0, so is the second term.
    """
    wins = given(trace.wins, SUCCESS, "mixed_certainty").to(value)
    mean = group_mean(value, trace.group)[trace.group]
    rate = group_mean(wins, trace.group)[trace.group]
    share = 1 - 4 * rate * (1 - rate)
    percent = torch.where(mean > 0, (value - mean) / mean.clamp_min(EPS), 0)
    mixed = (1 - share) * group_advantage(value, trace.group) + share * percent
    return mixed.expand(trace.valid.shape)


@needs(MATES)
def against_one(value: Tensor, trace: Trace) -> Tensor:
    """Better or worse than one mate, which each iteration appoints anew: no scale, no mean.

    Equation: A_i = sign(R_i - R_ref), ref = the mate whose number is the iteration modulo the group's size
    Paper: BRPO (Writing-Zero, 2506.00103), whose random reference this turns in a circle
    """
    reference = torch.zeros(int(trace.group.max()) + 1, dtype=value.dtype)
    for number in trace.group.unique():
        mates = value[trace.group == number]
        reference[number] = mates[trace.iteration % len(mates)]
    return (value - reference[trace.group]).sign().expand(trace.valid.shape)


@needs(SUCCESS)
def against_record(value: Tensor, trace: Trace) -> Tensor:
    """Compared with what the start's record predicted: a group of one is enough.

    Equation: A_i = (R_i - p_start) / (std_batch + 1e-4), p_start = the mean of the Beta posterior before this iteration
    Paper: SPO (Single-stream Policy Optimization, 2509.13232), without its KL-adaptive forgetting
    """
    gain = value - given(trace.predicted, SUCCESS, "against_record").to(value)
    return (gain / (gain.std(correction=0) + BATCH_EPS)).expand(trace.valid.shape)


@needs(SUCCESS, SURPRISE)
def single_rollout(value: Tensor, trace: Trace, *, entropy_share: float = 0.4, largest_part: float = 2.0) -> Tensor:
    """Compared with the start's record, and raised where the policy was undecided, by no more than half of itself.

    Equation: A_t = A + min(α H_t, |A| / κ), A as against_record, H_t = -log π of what was drawn
    Paper: MSSR (2512.18215), with α = 0.4, κ = 2 and one draw in place of the entropy
    """
    gain = against_record(value, trace)
    undecided = given(trace.surprise, SURPRISE, "single_rollout").to(gain).clamp_min(0)
    return gain + (entropy_share * undecided).minimum(gain.abs() / largest_part)


@needs(SUCCESS)
def shrunk(value: Tensor, trace: Trace, *, prior_rollouts: float = 4.0) -> Tensor:
    """Compared with the group's mean, drawn to what the start's record predicted: small groups have a steadier baseline.

    Equation: A_i = (R_i - b) / (std_batch + 1e-4), b = (n₀ p_start + Σ_g R) / (n₀ + G), n₀ = 4
    Paper: V_0.5 (2603.10848), with the record in place of its value model V_0 (2602.03584), and a fixed n₀
    """
    predicted = given(trace.predicted, SUCCESS, "shrunk").to(value)
    count = group_sum(torch.ones_like(value), trace.group)[trace.group]
    baseline = (prior_rollouts * predicted + group_sum(value, trace.group)[trace.group]) / (prior_rollouts + count)
    gain = value - baseline
    return (gain / (gain.std(correction=0) + BATCH_EPS)).expand(trace.valid.shape)


@needs(MATES, SURPRISE)
def entropy_aware(value: Tensor, trace: Trace, *, entropy_share: float = 0.1) -> Tensor:
    """Weigh decisions more that the policy was less sure of.

    Equation: A_t = A (1 + α z(H_t)), A as group_std, z over the batch's valid decisions, H_t = -log π of what was drawn
    Paper: AEPO (Agentic Entropy-Balanced Policy Optimization, 2510.14545), with α = 0.1 (ours)
    """
    surprise = given(trace.surprise, SURPRISE, "entropy_aware")
    known = surprise[trace.valid]
    score = (surprise - known.mean()) / (known.std(correction=0) + EPS)
    return group_std(value, trace) * (1 + entropy_share * score)


@needs(MATES, SURPRISE)
def novelty(value: Tensor, trace: Trace, *, novelty_weight: float = 1.0, largest_share: float = 0.5) -> Tensor:
    """Raise the advantage of successes that the policy found unlikely.

    Equation: A_i = A + min(max(λ (1 - exp(s_i - mean_g s)), 0), κ A) where A > 0, A as group_std, s_i = mean_t log π
    Paper: XRPO's novelty (2510.06672), with λ = 1 and κ = 1/2 (ours)
    """
    surprise = given(trace.surprise, SURPRISE, "novelty")
    length = trace.valid.sum(dim=0).clamp_min(1)
    score = -(surprise * trace.valid).sum(dim=0) / length
    gain = group_std(value, trace)
    bonus = novelty_weight * (1 - (score - group_mean(score, trace.group)[trace.group]).exp()).clamp_min(0)
    return gain + torch.where(gain > 0, bonus.to(gain).minimum(largest_share * gain), 0)
