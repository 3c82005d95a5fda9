"""Policy losses: what a gradient step descends, given kept decisions under the weights of the moment.

Shapes legend: ``M`` kept decisions; a policy's have a log-probability for each of their tokens ``[M, L, A]``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.methods.rl.interfaces import Evaluated

NO_DUAL_CLIP = 1e6  # bound on the ratio of negative advantages: flow methods have none, and their ratios stay near 1


def clipped_objective(
    logp: Tensor, logp_old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float
) -> Tensor:
    """min(ρA, clip(ρ)A) of each token ``[M, L, A]``, at least ``dual_clip``·A where A ``[M, 1, 1]`` < 0."""
    ratio = torch.exp(logp - logp_old)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    return torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)


def clipped(
    found: Evaluated, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = NO_DUAL_CLIP
) -> tuple[Tensor, Logs]:
    """Clip the ratio, upwards farther than downwards if asked (clip-higher), and bound it where A < 0 (dual clip).

    Equation: L = -mean w mean_k max(min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A), dual A where A < 0)
    Paper: PPO (1707.06347), DAPO's clip-higher (2503.14476), dual clip (1912.09729)
    """
    advantage = per_token(found.advantage, found.now)
    objective = clipped_objective(
        found.now, found.before, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    change = (found.now - found.before).detach().exp() - 1
    outside = (change > clip_high) | (change < -clip_low)
    return -(found.weight * over_tokens(objective)).mean(), ratio_logs(found) | {"clipped": outside.float().mean()}


def gaussian_trust(found: Evaluated, *, spread: float = 0.2) -> tuple[Tensor, Logs]:
    """Let the gradient fade smoothly as the ratio leaves 1, where clipping cuts it.

    Equation: L = -mean w mean_k exp(-(log ρ)² / 2σ²) ρ A, without a gradient through the first factor
    Paper: GIPO (AcceRL); σ is ours
    """
    log_ratio = found.now - found.before
    trust = torch.exp(-log_ratio.detach().square() / (2 * spread**2))
    objective = trust * log_ratio.exp() * per_token(found.advantage, found.now)
    return -(found.weight * over_tokens(objective)).mean(), ratio_logs(found)


def nft(found: Evaluated, *, beta: float = 1.0, advantage_max: float = 5.0) -> tuple[Tensor, Logs]:
    """Draw predictions to good samples and push them from bad ones, around what they were; no log-probability is needed.

    Equation: L = A_max mean [w L+ / β + (1 - w) L- / β], w = clip(A / A_max, -1, 1) / 2 + 1/2
    Paper: DiffusionNFT (2509.16117)
    """
    if found.target is None:
        raise SettingError(
            "parts.loss=nft compares predictions with finished samples; give it to diffusion_nft or sol_rl"
        )
    loss = nft_loss(found.now, found.before, found.target, found.advantage, beta=beta, advantage_max=advantage_max)
    return loss, {"nft_loss": loss.detach()}


def nft_loss(
    clean: Tensor, old: Tensor, target: Tensor, advantage: Tensor, *, beta: float, advantage_max: float
) -> Tensor:
    """DiffusionNFT's loss without KL: ẑ_θ, ẑ_old and finished chunks z ``[M, ...]``, advantages ``[M]``."""
    weight = (advantage / advantage_max).clamp(-1, 1) / 2 + 0.5
    good, bad = (
        _self_normalised(made, target) for made in (beta * clean + (1 - beta) * old, (1 + beta) * old - beta * clean)
    )
    return advantage_max * ((weight * good + (1 - weight) * bad) / beta).mean()


def _self_normalised(made: Tensor, target: Tensor) -> Tensor:
    error = (made - target).flatten(1)
    return error.square().mean(dim=1) / error.detach().abs().mean(dim=1).clamp_min(1e-5)


def preference(found: Evaluated, *, beta: float = 10.0, clip: float = 0.1) -> tuple[Tensor, Logs]:
    """Prefer the better of two samples ``[M, 2]``, best first.

    Equation: L = -log sigmoid(β (log ρ_best - log ρ_worst)), each log ρ clipped to log(1 ± clip)
    Paper: SPO (2406.04314)
    """
    if found.now.ndim != 2 or found.now.shape[1] != 2:
        raise SettingError("parts.loss=preference compares pairs; give it to step_aware_preference")
    best, worst = (found.now - found.before).unbind(dim=1)
    return preference_loss(best, worst, beta=beta, clip=clip), {}


def preference_loss(best: Tensor, worst: Tensor, *, beta: float, clip: float) -> Tensor:
    """SPO's loss of log-ratios ``[M]`` of the best and worst candidates, each clipped to log(1 ± ``clip``)."""
    low, high = torch.tensor([1 - clip, 1 + clip]).log().tolist()
    return -F.logsigmoid(beta * (best.clamp(low, high) - worst.clamp(low, high))).mean()


# --- what they share ---------------------------------------------------------------------------------------------------


def per_token(advantage: Tensor, logp: Tensor) -> Tensor:
    """Shape advantages ``[M]`` so that they broadcast to log-probabilities ``[M, ...]``."""
    return advantage.view(-1, *[1] * (logp.ndim - 1))


def over_tokens(objective: Tensor) -> Tensor:
    """Mean of each decision's tokens: ``[M, ...]`` to ``[M]``."""
    return objective.mean(dim=tuple(range(1, objective.ndim))) if objective.ndim > 1 else objective


def ratio_logs(found: Evaluated) -> Logs:
    """Mean |log ρ|, a sampled KL of each decision, and the effective share of the sample (Σ ρ)² / (M Σ ρ²)."""
    change = (found.now - found.before).detach()
    log_ratio = change.flatten(1) if change.ndim > 1 else change[:, None]
    kl = (log_ratio.exp() - 1 - log_ratio).sum(dim=1).mean()
    ratio = log_ratio.double().sum(dim=1).exp()
    effective = ratio.sum().square() / (len(ratio) * ratio.square().sum())
    return {"approx_kl": kl, "log_ratio": log_ratio.abs().mean(), "effective_share": effective.float()}
