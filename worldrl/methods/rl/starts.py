"""Start samplers, and allocators of an iteration's rollouts among the starts.

Shapes legend: ``S`` start records, ``N`` of them in an iteration.
"""

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.methods.rl.records import StartRecords
from worldrl.rollout.imagined.reset_store import balanced_starts


def balanced(records: StartRecords, count: int, generator: torch.Generator) -> Tensor:
    """Tasks take turns; within one a keyframe with a fixed probability, else an initial state.

    Equation: P(keyframe) = p_keyframe
    Paper: WoVR's keyframe-initialised rollouts
    """
    return torch.tensor(balanced_starts(records.task, records.keyframe, count, records.p_keyframe, generator=generator))


def permuted(records: StartRecords, count: int, generator: torch.Generator) -> Tensor:
    """All different as long as there are enough.

    Equation: the first N of a random permutation
    Paper: none
    """
    total = len(records.task)
    rounds = [torch.randperm(total, generator=generator) for _ in range(-(-count // total))]
    return torch.cat(rounds)[:count]


def mopps(records: StartRecords, count: int, generator: torch.Generator) -> Tensor:
    """Draw a rate of success for each start from its posterior, and take the starts nearest to one half.

    Equation: p ~ Beta(1 + wins, 1 + losses); the N least (p - 1/2)²
    Paper: MoPPS (2507.04632)
    """
    alpha, beta = records.posterior(torch.arange(len(records.task)))
    rate = _beta(alpha, beta, generator)
    order = (rate - 0.5).square().argsort(stable=True)
    return order.repeat(-(-count // len(order)))[:count]


def _beta(alpha: Tensor, beta: Tensor, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**31, (), generator=generator))
    return torch.from_numpy(numpy_stream(seed, "beta").beta(alpha.numpy(), beta.numpy()))


# --- how many rollouts each gets ---------------------------------------------------------------------------------------


def uniform(records: StartRecords, starts: Tensor, budget: int) -> Tensor:
    """As many from each start.

    Equation: G_i = budget / N
    Paper: none
    """
    if budget % len(starts):
        raise SettingError(f"{budget} rollouts cannot be shared out alike among {len(starts)} starts")
    return torch.full((len(starts),), budget // len(starts))


def root_variance(records: StartRecords, starts: Tensor, budget: int) -> Tensor:
    """More from starts whose outcome is less certain, at least two from each.

    Equation: G_i = 2 + (budget - 2 N) sqrt(p_i (1 - p_i)) / sum, with p_i the posterior mean of success
    Paper: GDRO-Rollout's variance-optimal share (2601.19280)
    """
    rest = budget - 2 * len(starts)
    if rest < 0:
        raise SettingError(
            f"parts.budget=root_variance needs two rollouts of each of {len(starts)} starts, got {budget}"
        )
    alpha, beta = records.posterior(starts)
    share = (alpha * beta).sqrt() / (alpha + beta)
    wanted = rest * share / share.sum()
    whole = wanted.floor().long()
    order = (wanted - whole).argsort(descending=True, stable=True)
    whole[order[: rest - int(whole.sum())]] += 1
    return 2 + whole
