"""NEUBAY's bandit with two arms: a reward ensemble whose members agree on the recorded arm only.

Ni et al., "Long-Horizon Model-Based Offline RL Without Conservatism" (2025), section on the bandit. The data hold
rewards of arm 0 alone. Each member is a small Gaussian regression. All members learn arm 0's mean and spread, and keep
their initial predictions for arm 1: the posterior of a bandit whose other arm is unknown.

Shapes legend: ``N`` members, ``B`` rows of a batch, ``K`` arms, ``h`` hidden units, ``E`` rollouts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.stacked import StackedLayerNorm, StackedLinear, fan_in_uniform
from worldrl.world_models.state.ensemble import soft_clamp

LOG_SIGMA = (-5.0, 0.25)  # Soft bounds of the predicted log standard deviation
IMPROVEMENT = 1e-3  # Fall of the hold-out loss that counts as one
PATIENCE = 5  # Epochs without an improvement before training stops


@dataclass(frozen=True)
class RewardTraining:
    """Settings of the ensemble's training; the paper's."""

    members: int = 128  # number trained
    elites: int = 100  # number used, the best by hold-out loss
    hidden: int = 16  # h, in two layers
    epochs: int = 500  # at most
    batch: int = 128  # rows per member and step
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    hold_out: float = 0.2  # share of the rows that only measures


class RewardEnsemble(nn.Module):
    """Members of two layers (linear, layer norm, leaky ReLU), with a mean and a log standard deviation each."""

    def __init__(self, members: int, arms: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = StackedLinear(members, arms, hidden), StackedLinear(members, hidden, hidden)
        self.norms = nn.ModuleList([StackedLayerNorm(members, hidden), StackedLayerNorm(members, hidden)])
        self.out = StackedLinear(members, hidden, 2)
        for layer in (self.first, self.second, self.out):
            fan_in_uniform(layer)

    def forward(self, arm: Tensor) -> tuple[Tensor, Tensor]:
        """Map one-hot arms ``[N, B, K]`` to mean and log standard deviation ``[N, B]``."""
        h = F.leaky_relu(self.norms[0](self.first(arm)))
        h = F.leaky_relu(self.norms[1](self.second(h)))
        mu, log_sigma = self.out(h).unbind(-1)
        return mu, soft_clamp(log_sigma, *LOG_SIGMA)


def gaussian_nll(mu: Tensor, log_sigma: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood without its constant, ``½ ((y - μ) / σ)² + log σ``, elementwise."""
    return 0.5 * ((y - mu) / log_sigma.exp()) ** 2 + log_sigma


def fit_rewards(
    ensemble: RewardEnsemble, reward: Tensor, config: RewardTraining, *, generator: torch.Generator
) -> Tensor:
    """Train on rewards ``[n]`` of arm 0, and leave each member at its best epoch; return its hold-out loss ``[N]``."""
    order = torch.randperm(len(reward), generator=generator)
    held, train = reward[order].split(
        [round(config.hold_out * len(reward)), len(reward) - round(config.hold_out * len(reward))]
    )
    optimizer = torch.optim.AdamW(
        ensemble.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    best, kept, dry = _loss(ensemble, held), [p.detach().clone() for p in ensemble.parameters()], 0
    for _ in range(config.epochs):
        shuffled = torch.rand(config.members, len(train), generator=generator).argsort(1)
        for batch in shuffled.split(config.batch, 1):
            _step(ensemble, optimizer, train[batch])
        found = _loss(ensemble, held)
        better = best - found > IMPROVEMENT
        for saved, p in zip(kept, ensemble.parameters(), strict=True):
            saved[better] = p.detach()[better]
        best, dry = torch.where(better, found, best), 0 if bool(better.any()) else dry + 1
        if dry >= PATIENCE:
            break
    with torch.no_grad():
        for saved, p in zip(kept, ensemble.parameters(), strict=True):
            p.copy_(saved)
    return best


def _pulled(y: Tensor, arms: int) -> Tensor:
    """One-hot arm 0 for every row of y."""
    return F.one_hot(torch.zeros_like(y, dtype=torch.int64), arms).float()


def _step(ensemble: RewardEnsemble, optimizer: torch.optim.Optimizer, y: Tensor) -> None:
    mu, log_sigma = ensemble(_pulled(y, ensemble.first.weight.shape[1]))
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(gaussian_nll(mu, log_sigma, y).mean(1).sum())
    optimizer.step()


@torch.no_grad()
def _loss(ensemble: RewardEnsemble, y: Tensor) -> Tensor:
    members = ensemble.first.weight.shape[0]
    rows = y.expand(members, -1)
    mu, log_sigma = ensemble(_pulled(rows, ensemble.first.weight.shape[1]))
    return gaussian_nll(mu, log_sigma, rows).mean(1)


@dataclass(frozen=True)
class ElitePredictions:
    """Predictions of the elites; a bandit has no state, so a table per arm is the whole model."""

    mu: Tensor  # `[N, K]` mean reward
    sigma: Tensor  # `[N, K]` standard deviation
    uncertainty: Tensor  # `[K]`, standard deviation of the means over members

    def rewards(self, arm: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw a reward for ``arm`` int64 ``[E]``; rollout e uses member e mod N at every pull."""
        member = torch.arange(len(arm)) % len(self.mu)
        noise = torch.randn(len(arm), generator=generator)
        return self.mu[member, arm] + self.sigma[member, arm] * noise

    def rescaled(self, mean: float, std: float) -> "ElitePredictions":
        """Convert predictions of standardised rewards to predictions of rewards."""
        return ElitePredictions(mean + std * self.mu, std * self.sigma, std * self.uncertainty)


@torch.no_grad()
def elite_predictions(ensemble: RewardEnsemble, loss: Tensor, elites: int) -> ElitePredictions:
    """Return the predictions of the members with the smallest hold-out loss."""
    members, arms = ensemble.first.weight.shape[:2]
    mu, log_sigma = ensemble(torch.eye(arms).expand(members, arms, arms))
    best = loss.argsort()[:elites]
    return ElitePredictions(mu[best], log_sigma[best].exp(), mu[best].std(0, correction=0))
