"""Start samplers: where an iteration's rollouts begin.

Shapes legend: ``S`` start records, ``N`` of them in an iteration.
"""

import torch
from torch import Tensor

from worldrl.core.rng import numpy_stream
from worldrl.methods.rl.interfaces import SUCCESS, needs
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


@needs(SUCCESS)
def mopps(records: StartRecords, count: int, generator: torch.Generator) -> Tensor:
    """Draw a rate of success for each start from its posterior, and take the starts nearest to one half.

    Equation: p ~ Beta(1 + wins, 1 + losses); the N least (p - 1/2)²
    Paper: MoPPS (2507.04632); VADE (2511.18902), whose p (1 - p) orders the draws alike, without its decay of unvisited starts
    """
    alpha, beta = records.posterior(torch.arange(len(records.task)))
    rate = _beta(alpha, beta, generator)
    order = (rate - 0.5).square().argsort(stable=True)
    return order.repeat(-(-count // len(order)))[:count]


def _beta(alpha: Tensor, beta: Tensor, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**31, (), generator=generator))
    return torch.from_numpy(numpy_stream(seed, "beta").beta(alpha.numpy(), beta.numpy()))


@needs(SUCCESS)
def self_evolving_curriculum(
    records: StartRecords, count: int, generator: torch.Generator, *, curriculum_temperature: float = 0.3
) -> Tensor:
    """Draw a task by what its latest groups could teach, then a start of it as ``balanced`` does.

    Equation: P(task) = softmax(Q / τ), Q a moving average of its groups' mean |A|, at first 1; τ = 0.3
    Paper: SEC (2505.14970), with tasks as its categories
    """
    chance = (torch.tensor(list(records.gain.values())) / curriculum_temperature).softmax(dim=0)
    drawn = chance.multinomial(count, replacement=True, generator=generator)
    return torch.tensor([_start_of(records, list(records.gain)[task], generator) for task in drawn.tolist()])


def _start_of(records: StartRecords, task: str, generator: torch.Generator) -> int:
    own = [number for number, name in enumerate(records.task) if name == task]
    keyframe = [records.keyframe[number] for number in own]
    return own[balanced_starts([task] * len(own), keyframe, 1, records.p_keyframe, generator=generator)[0]]


@needs(SUCCESS)
def hardest(records: StartRecords, count: int, generator: torch.Generator, *, hard_share: float = 0.25) -> Tensor:
    """Draw from the quarter of the starts that succeed least often.

    Equation: uniform among the S / 4 starts with the least (1 + wins) / (2 + wins + losses)
    Paper: DRIVE's hard-focus stage (2511.06307), with the share ours; its stage has large groups, too
    """
    alpha, beta = records.posterior(torch.arange(len(records.task)))
    kept = (alpha / (alpha + beta)).argsort(stable=True)[: max(1, round(hard_share * len(alpha)))]
    return kept[torch.randint(len(kept), (count,), generator=generator)]


@needs(SUCCESS)
def difficulty_bins(
    records: StartRecords,
    count: int,
    generator: torch.Generator,
    *,
    bins: int = 10,
    sharpness: float = 2.0,
    uniform_share: float = 0.1,
) -> Tensor:
    """Draw a bin of difficulty, harder ones more often, then a start of it.

    Equation: q_b = (1 - γ) exp(η S_b) / Σ + γ / B, S_b = mean failure rate of the bin; B = 10, η = 2, γ = 0.1
    Paper: GDRO-Prompt (2601.19280), with each start's posterior in place of its running pass@8 and running scores

    Empty bins are left out. The paper's weight on the advantages is not there.
    """
    alpha, beta = records.posterior(torch.arange(len(records.task)))
    rate = alpha / (alpha + beta)
    place = (rate * bins).long().clamp_max(bins - 1)
    number, place = place.unique(return_inverse=True)
    score = torch.stack([1 - rate[place == b].mean() for b in range(len(number))])
    chance = (1 - uniform_share) * (sharpness * score).softmax(dim=0) + uniform_share / len(number)
    drawn = chance.multinomial(count, replacement=True, generator=generator)
    members = [(place == b).nonzero()[:, 0] for b in range(len(number))]
    return torch.stack([members[b][torch.randint(len(members[b]), (), generator=generator)] for b in drawn.tolist()])
