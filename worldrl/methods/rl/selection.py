"""Sample selectors: which decisions are learned from. Each maps advantages ``[T, B]`` to weights ``[T, B]``; 0 leaves out."""

from dataclasses import replace

import torch
from torch import Tensor

from worldrl.methods.rl.groups import group_mean, group_range, group_sum
from worldrl.methods.rl.interfaces import PROBABILITY, SURPRISE, Trace, given, needs, progress

LEAST = 1e-6  # advantages that lie closer together are equal


def everything(advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator) -> Tensor:
    """Every decision counts alike.

    Equation: w = 1
    Paper: none
    """
    return torch.ones(trace.valid.shape)


def informative(
    advantage: Tensor,
    value: Tensor,
    trace: Trace,
    generator: torch.Generator,
    *,
    keep_low: float = 0.0,
    keep_high: float = 1.0,
) -> Tensor:
    """Leave groups out whose advantages are all equal, and those that success alone tells apart too rarely or too often.

    Equation: w = 1 where max_g A > min_g A, and keep_low <= mean_g success <= keep_high where A depends on success alone
    Paper: DAPO (2503.14476)

    A group of one outcome stays where another term or trust tells its rollouts apart (GDPO's case).
    """
    apart = _apart(advantage, trace.group)
    if trace.wins is not None:
        rate = group_mean(trace.wins.float(), trace.group)[trace.group]
        finer = _apart(advantage, 2 * trace.group + trace.wins)
        by_more = group_sum(finer.float(), trace.group)[trace.group] > 0
        apart &= by_more | ((rate >= keep_low) & (rate <= keep_high))
    return apart.float().expand(trace.valid.shape)


def _apart(advantage: Tensor, group: Tensor) -> Tensor:
    ends = (advantage.amax(dim=0), advantage.amin(dim=0))
    return torch.stack([group_range(end, group)[group] > LEAST for end in ends]).any(dim=0)


def random_steps(
    advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, *, trained_share: float = 0.6
) -> Tensor:
    """Train a share of each row's decisions, drawn anew for every row; at least one.

    Equation: w = 1 for a random 60 % of t
    Paper: DanceGRPO (2505.07818)
    """
    times = trace.valid.any(dim=1).nonzero()[:, 0]
    count = max(1, round(trained_share * len(times)))
    rank = torch.rand(len(times), trace.valid.shape[1], generator=generator).argsort(dim=0).argsort(dim=0)
    return torch.zeros(trace.valid.shape).index_copy(0, times, (rank < count).float())


def extremes(
    advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, *, extremes_share: float = 0.5
) -> Tensor:
    """Keep each group's best and worst rollouts.

    Equation: w = 1 for the share/2 best and the share/2 worst of each group by R
    Paper: BranchGRPO's width pruning (2509.06040)
    """
    keep = torch.zeros_like(value)
    for rows in _by_value(value, trace.group):
        each = max(1, round(extremes_share * len(rows) / 2))
        keep[torch.cat([rows[:each], rows[-each:]])] = 1
    return keep.expand(trace.valid.shape)


def best_and_worst(value: Tensor, group: Tensor, count: int) -> Tensor:
    """Choose the ``count // 2`` worst and ``count - count // 2`` best rows of every group, int64, in order of group."""
    chosen: list[Tensor] = []
    for rows in _by_value(value, group):
        worst = count // 2
        chosen += [rows[:worst], rows[len(rows) - (count - worst) :]]
    return torch.cat(chosen)


def _by_value(value: Tensor, group: Tensor) -> list[Tensor]:
    members = [(group == number).nonzero()[:, 0] for number in group.unique()]
    return [rows[value[rows].argsort(stable=True)] for rows in members]


def largest_variance(
    advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, *, extremes_share: float = 0.5
) -> Tensor:
    """Keep the rollouts of each group whose values vary most: some best and some worst ones, as many of each as pays.

    Equation: argmax over subsets of n rows of Var(R); it is k worst and n - k best ones
    Paper: PODS (2504.13818)
    """
    keep = torch.zeros_like(value)
    for rows in _by_value(value, trace.group):
        count = max(2, round(extremes_share * len(rows)))
        parts = [torch.cat([rows[:k], rows[len(rows) - (count - k) :]]) for k in range(min(count, len(rows)) + 1)]
        keep[max(parts, key=lambda part: float(value[part].var(correction=0)))] = 1
    return keep.expand(trace.valid.shape)


def successes(advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator) -> Tensor:
    """Imitate what succeeded: each success counts as much as it is better than its mates, and failures teach nothing.

    Equation: w = max(A, 0) where R > 0
    Paper: ReST (2308.08998), with RLOO's baseline
    """
    return advantage.clamp_min(0) * (value > 0)


@needs(PROBABILITY)
def advancing(
    advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, *, largest_loss: float = 0.0
) -> Tensor:
    """Imitate the steps of successes that brought success nearer, or at least no farther away.

    Equation: w_t = max(A_t, 0) where R > 0 and Φ_t - Φ_{t-1} >= -ε, Φ the success probability, ε = 0
    Paper: WebSTAR's step filter (2512.10962), with the success head in place of a language model that grades steps
    """
    return successes(advantage, value, trace, generator) * (progress(trace, "advancing") >= -largest_loss)


@needs(SURPRISE)
def two_levels(
    advantage: Tensor,
    value: Tensor,
    trace: Trace,
    generator: torch.Generator,
    *,
    extremes_share: float = 0.5,
    trained_share: float = 0.6,
) -> Tensor:
    """Keep the rollouts whose advantages vary most over the whole batch, and of these the decisions that matter most.

    Equation: rows = argmax over subsets of n of Var(A); of their decisions those with the largest |A_t| H_t, H_t = -log π
    Paper: D3S (2509.22115), without its schedule, and with one draw in place of the entropy
    """
    surprise = given(trace.surprise, SURPRISE, "two_levels").to(advantage)
    gain = (advantage * trace.valid).sum(dim=0) / trace.valid.sum(dim=0).clamp_min(1)
    rows = largest_variance(
        advantage, gain, replace(trace, group=torch.zeros_like(trace.group)), generator, extremes_share=extremes_share
    )
    score = torch.where((rows > 0) & trace.valid, advantage.abs() * surprise.clamp_min(0), -1)
    count = max(1, round(trained_share * int((score >= 0).sum())))
    chosen = score.flatten().argsort(descending=True, stable=True)[:count]
    keep = torch.zeros(score.numel())
    keep[chosen[score.flatten()[chosen] >= 0]] = 1
    return keep.view(score.shape)
