"""Policy losses for samples that are not quite the trained policy's own: what they do with the ratio ρ = π_θ / π_b.

π_b drew the samples. Some losses also know a proximal policy π_p, an average of the trained weights or those of the
iteration's beginning (``methods.rl.proximal``).

Shapes legend: ``M`` kept decisions; a policy's have a log-probability for each of their tokens ``[M, L, A]``.
"""

from dataclasses import replace

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.methods.rl.interfaces import AVERAGE, BEGINNING, DEMONSTRATIONS, Evaluated, given, needs
from worldrl.methods.rl.losses import NO_DUAL_CLIP, clipped_objective, over_tokens, per_token, ratio_logs


def prefix_minimum(found: Evaluated, *, clip_low: float = 0.2, clip_high: float = 0.28) -> tuple[Tensor, Logs]:
    """Weigh each token by the least likely of those before it in its decision, where a product of ratios would explode.

    Equation: L = -mean w mean_k m_k min(ρ_k A, clip(ρ_k) A), m_k = min(1, min_{j < k} ρ_j) without a gradient
    Paper: MinPRO (2601.22718); the clip and the bound of 1 are ours

    A decision's tokens are in the order of its control steps.
    """
    ratio = (found.now - found.before).detach().flatten(1).exp()
    first = torch.ones_like(ratio[:, :1])
    least = torch.cat([first, ratio[:, :-1]], dim=1).cummin(dim=1).values.view_as(found.now)
    objective = _clipped(found, found.before, clip_low, clip_high)
    logs = ratio_logs(found) | {"prefix": least.mean()}
    return -(found.weight * over_tokens(least * objective)).mean(), logs


def balanced_clip(
    found: Evaluated,
    *,
    positive_share: float = 0.5,
    low: tuple[float, float] = (0.6, 0.9),
    high: tuple[float, float] = (1.2, 3.0),
    step: float = 0.05,
) -> tuple[Tensor, Logs]:
    """Move the clip's ends until good samples have half of the gradient: first the lower one up, then the upper one up.

    Equation: L = -mean w mean_k A min(ρ, c_high) where A > 0, A max(ρ, c_low) else; c from (0.6, 1.2) by 0.05 to (0.9, 3)
    Paper: BAPO (2510.18927); the share is of Σ w |A| ρ inside the clip
    """
    advantage = per_token(found.advantage, found.now).expand_as(found.now)
    ratio = (found.now - found.before).exp()
    count = per_token(found.weight, found.now).expand_as(found.now) * advantage.abs()
    known = ratio.detach()
    c_low, c_high = low[0], high[0]

    def share() -> float:
        inside = torch.where(advantage > 0, known <= c_high, known >= c_low)
        part = count * known * inside
        return float(part[advantage > 0].sum() / part.sum().clamp_min(1e-12))

    while share() < positive_share and c_low + step <= low[1] + 1e-9:
        c_low += step
    while share() < positive_share and c_high + step <= high[1] + 1e-9:
        c_high += step
    bounded = torch.where(advantage > 0, ratio.clamp(max=c_high), ratio.clamp(min=c_low))
    logs = ratio_logs(found) | {"clip_low": torch.tensor(c_low), "clip_high": torch.tensor(c_high)}
    return -(found.weight * over_tokens(bounded * advantage)).mean(), logs


def leftover(found: Evaluated, *, clip: float = 0.9) -> tuple[Tensor, Logs]:
    """Learn from decisions that turned out better than expected alone, each taken as one action.

    Equation: L = -mean w A [A > 0] clip(ρ, 1 - 0.9, 1 + 0.9) mean_k log π_θ, ρ = Π_k ρ_k without a gradient
    Paper: A-LoL (2305.14718)
    """
    change = (found.now - found.before).detach().flatten(1).sum(dim=1)
    ratio = change.exp().clamp(1 - clip, 1 + clip)
    gain = found.advantage.clamp_min(0) * ratio
    return -(found.weight * gain * over_tokens(found.now)).mean(), ratio_logs(found)


def kept_gradient(found: Evaluated, *, clip_low: float = 0.2, clip_high: float = 0.28) -> tuple[Tensor, Logs]:
    """Clip what good tokens that became likelier are worth, but keep their gradient, at the clip's height.

    Equation: L as clipped, but above 1 + ε_high where A > 0 the objective is (1 + ε_high) A ρ / sg(ρ)
    Paper: AEPO (Agentic Entropy-Balanced Policy Optimization, 2510.14545), which does so for uncertain tokens alone
    """
    advantage = per_token(found.advantage, found.now)
    ratio = (found.now - found.before).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    above = (ratio > 1 + clip_high) & (advantage > 0)
    kept = torch.where(above, (1 + clip_high) * advantage * ratio / ratio.detach(), objective)
    return -(found.weight * over_tokens(kept)).mean(), ratio_logs(found) | {"clipped": above.float().mean()}


@needs(AVERAGE)
def decoupled(
    found: Evaluated, *, clip_low: float = 0.2, clip_high: float = 0.28, largest_weight: float = 100.0
) -> tuple[Tensor, Logs]:
    """Clip the ratio to an average of the weights, and weigh by the average's ratio to what acted.

    Equation: L = -mean w mean_k min(π_p / π_b, 100) min(u A, clip(u) A), u = π_θ / π_p, π_p the average of the weights
    Paper: PPO-EWMA (2110.00641), whose average decays by 0.889 a step; the decoupled loss of AReaL (2505.24298)
    """
    proximal = given(found.proximal, AVERAGE, "decoupled")
    objective = _clipped(found, proximal, clip_low, clip_high)
    weight = (proximal - found.before).exp().clamp(max=largest_weight)
    logs = ratio_logs(found) | {"proximal_ratio": weight.mean()}
    return -(found.weight * over_tokens(weight * objective)).mean(), logs


@needs(BEGINNING)
def mismatch_mask(
    found: Evaluated,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    least_mismatch: float = 0.5,
    largest_mismatch: float = 5.0,
) -> tuple[Tensor, Logs]:
    """Leave tokens out that training finds far likelier or unlikelier than the rollout did, under the same weights.

    Equation: L as clipped with u = π_θ / π_p, times M(π_p / π_b), M(k) = k in [0.5, 5], else 0; π_p at the iteration's beginning
    Paper: IcePop (Ring-1T, 2510.18855)

    ``mismatch`` in the log is the mean |log π_p - log π_b|: 0 where rollouts and training compute alike.
    """
    proximal = given(found.proximal, BEGINNING, "mismatch_mask")
    gap = proximal - found.before
    factor = gap.exp()
    inside = (factor >= least_mismatch) & (factor <= largest_mismatch)
    objective = _clipped(found, proximal, clip_low, clip_high)
    logs = ratio_logs(found) | {"mismatch": gap.abs().mean(), "masked": 1 - inside.float().mean()}
    return -(found.weight * over_tokens(factor * inside * objective)).mean(), logs


@needs(BEGINNING, DEMONSTRATIONS)
def with_demonstrations(
    found: Evaluated, *, clip_low: float = 0.2, clip_high: float = 0.28, curiosity: float = 0.5
) -> tuple[Tensor, Logs]:
    """Learn from demonstrations beside the policy's own decisions, and most from what it would hardly do.

    Equation: L as clipped for own decisions; of demonstrations -mean_k 2 π_θ / (π_p + ω) (1 - sg(π_θ))^γ, ω = (π_p + 1) / 2, γ = 1/2
    Paper: RL-PLUS (2508.00222); demonstrations have advantage 1 (ours), π_p is the policy of the iteration's beginning

    A quarter as many demonstrations as own decisions are in each gradient step.
    """
    external = given(found.external, DEMONSTRATIONS, "with_demonstrations")
    proximal = given(found.proximal, BEGINNING, "with_demonstrations").exp()
    advantage = per_token(found.advantage, found.now)
    objective = _clipped(found, found.before, clip_low, clip_high)
    likely = found.now.exp()
    shown = 2 * likely / (proximal + (proximal + 1) / 2) * (1 - likely.detach()).clamp_min(0) ** curiosity * advantage
    mixed = torch.where(per_token(external, found.now), shown, objective)
    logs = {"demonstrated": likely.detach()[external].mean()}
    own = replace(found, now=found.now[~external], before=found.before[~external])
    return -(found.weight * over_tokens(mixed)).mean(), ratio_logs(own) | logs


def _clipped(found: Evaluated, before: Tensor, low: float, high: float) -> Tensor:
    """The clipped objective of each token ``[M, ...]``, with the ratio to ``before`` and no bound where A < 0."""
    advantage = per_token(found.advantage, found.now)
    return clipped_objective(found.now, before, advantage, clip_low=low, clip_high=high, dual_clip=NO_DUAL_CLIP)
