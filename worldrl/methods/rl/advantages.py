"""Advantage estimators: how much better than its group mates a rollout turned out; groups may have any sizes.

Each returns ``[T, B]``; one that judges whole rollouts repeats itself over time.

Shapes legend: ``B`` rollouts, ``N`` groups, ``T`` decisions in time; ``group`` int64 ``[B]`` with ids 0..N-1.
"""

from torch import Tensor

from worldrl.methods.rl.groups import group_mean, group_sum, mates_mean
from worldrl.methods.rl.interfaces import Trace

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


def group_std(value: Tensor, trace: Trace) -> Tensor:
    """Each group's z-score.

    Equation: A_i = (R_i - mean_g) / (std_g + 1e-6)
    Paper: GRPO (DeepSeekMath, 2402.03300)
    """
    pool, pool_group = trace.explored or (value, trace.group)
    return _by_group(value, trace.group, pool, pool_group).expand(trace.valid.shape)


def batch_std(value: Tensor, trace: Trace) -> Tensor:
    """Centred in the group, divided by the deviation of the whole batch: a group of equals stays small.

    Equation: A_i = (R_i - mean_g) / (std_batch + 1e-4)
    Paper: Flow-GRPO's global_std (2505.05470)
    """
    pool, pool_group = trace.explored or (value, trace.group)
    return _by_batch(value, trace.group, pool, pool_group).expand(trace.valid.shape)


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


def leave_one_out(value: Tensor, trace: Trace) -> Tensor:
    """Compared with the group mates alone; one without mates is compared with 0.

    Equation: A_i = R_i - mean of the mates' R
    Paper: RLOO (2402.14740)
    """
    return (value - mates_mean(value, trace.group)).expand(trace.valid.shape)


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
