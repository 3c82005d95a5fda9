"""Step credit inside one outcome: which decisions of a rollout its success or failure is owed to.

The potential Φ_t is the success head's probability after decision ``t``, and Φ_{-1} = 0: nothing is done yet. It says how
likely the task *is done*, which is less than how likely it *will be*.

Shapes legend: ``B`` rollouts, ``T`` decisions in time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.methods.rl.advantages import BATCH_EPS, group_std, mean_only
from worldrl.methods.rl.groups import group_mean
from worldrl.methods.rl.interfaces import IMAGES, MATES, PROBABILITY, Trace, given, needs, progress

CELLS, LEVELS = 4, 8
"""Side of the grid and number of brightness levels by which two images are distinguished."""


@needs(MATES, PROBABILITY)
def process_advantage(value: Tensor, trace: Trace, *, progress_weight: float = 1.0) -> Tensor:
    """Add what each decision itself gained to the advantage of the outcome.

    Equation: A_t = A + α (Φ_t - Φ_{t-1}), A as group_std
    Paper: PAV (2410.08146), with the success head in place of a prover's value, α = 1 (ours)
    """
    return group_std(value, trace) + progress_weight * progress(trace, "process_advantage")


@needs(MATES, PROBABILITY)
def verified_steps(value: Tensor, trace: Trace, *, least_gain: float = 0.05, decay: float = 0.9) -> Tensor:
    """Reward decisions for the gain in success; one without a gain shares that of the next one that has one, discounted.

    Equation: r_t = d_t where |d_t| > ε, else γ^(q-t) d_q of the next q with |d_q| > ε; A_t = z(R + Σ_{s >= t} r_s)
    Paper: VSRM (2508.10293), with ε = 0.05, γ = 0.9 (ours); z is that of returns_to_go
    """
    gain = progress(trace, "verified_steps")
    reward = torch.zeros_like(gain)
    ahead = torch.zeros_like(gain[0])
    for t in reversed(range(len(gain))):
        ahead = torch.where(gain[t].abs() > least_gain, gain[t], decay * ahead)
        reward[t] = ahead
    return returns_to_go(value, reward * trace.valid, trace)


@needs(MATES, PROBABILITY)
def redistributed(value: Tensor, trace: Trace) -> Tensor:
    """Share the outcome out among the decisions, by the progress that each made; the shares add up to the outcome.

    Equation: c_t = d_t + (R - Σ_s d_s) / T_i; A_t = z(Σ_{s >= t} c_s)
    Paper: SPA-RL (2505.20732), with the success head in place of its learned estimator, and without its grounding term

    z is that of returns_to_go.
    """
    gain = progress(trace, "redistributed")
    length = trace.valid.sum(dim=0).clamp_min(1)
    share = gain + (value - gain.sum(dim=0)) / length
    return returns_to_go(torch.zeros_like(value), share * trace.valid, trace)


def returns_to_go(value: Tensor, reward: Tensor, trace: Trace) -> Tensor:
    """Compare what follows each decision with what follows its mates' at the same time, in units of the batch's deviation.

    ``value [B]`` comes at the end, ``reward [T, B]`` step by step.
    """
    after = value + reward.flip(0).cumsum(dim=0).flip(0)
    centred = torch.zeros_like(after)
    for t, running in enumerate(trace.valid):
        rows = running.nonzero()[:, 0]
        if len(rows):
            group = trace.group[rows]
            centred[t, rows] = after[t, rows] - group_mean(after[t, rows], group)[group]
    known = centred[trace.valid]
    scale = known.square().mean().sqrt() if len(known) else torch.ones(())
    return centred / (scale + BATCH_EPS)


# --- states that several rollouts of a start share -----------------------------------------------------------------------


def anchors(trace: Trace) -> Tensor:
    """Number the states before each decision and after the last, int64 ``[T + 1, B]``: one number, one start, one look.

    Two images look alike where the mean brightness of each cell of a 4 by 4 grid is on the same of 8 levels.
    """
    images = given(trace.images, IMAGES, "credit by shared states")()
    rows = list[Tensor]()
    for image in images:
        coarse = F.adaptive_avg_pool2d(image.movedim(-1, 1).float(), CELLS)
        level = (coarse * LEVELS / 256).long().clamp(0, LEVELS - 1).flatten(1)
        rows.append(torch.cat([trace.group[:, None], level], dim=1))
    return torch.cat(rows).unique(dim=0, return_inverse=True)[1].view(len(images), -1)


@needs(MATES, IMAGES)
def anchored(value: Tensor, trace: Trace, *, discount: float = 0.95, step_weight: float = 1.0) -> Tensor:
    """Compare decisions that began in the same state of the same start, beside the comparison of whole rollouts.

    Equation: A_t = A^E + ω A^S_t, A^E = R - mean_g; A^S = γ^(T_i - 1 - t) R - its mean over decisions from the same state
    Paper: GiGPO (2505.10978), with ω = 1, γ = 0.95; states are alike as anchors says

    A state that no other decision begins in adds nothing.
    """
    length = trace.valid.sum(dim=0)
    ahead = (length - 1 - torch.arange(len(trace.valid))[:, None]).clamp_min(0)
    after = discount ** ahead.to(value) * value
    state = anchors(trace)[:-1][trace.valid]
    step = torch.zeros_like(after)
    step[trace.valid] = after[trace.valid] - group_mean(after[trace.valid], state)[state]
    return mean_only(value, trace) + step_weight * step


@needs(MATES, IMAGES)
def shared_steps(value: Tensor, trace: Trace) -> Tensor:
    """Give a step that several rollouts of a start took the mean of their advantages: what all did decided nothing.

    Equation: A_t = mean of A over the rollouts with the same step (state before, state after), A as group_std
    Paper: SALT (2510.20022), whose steps also have the same action; states are alike as anchors says
    """
    state = anchors(trace)
    step = torch.stack([state[:-1][trace.valid], state[1:][trace.valid]], dim=1).unique(dim=0, return_inverse=True)[1]
    advantage = group_std(value, trace).clone()
    advantage[trace.valid] = group_mean(advantage[trace.valid], step)[step]
    return advantage
