"""A probabilistic ensemble of state dynamics: p_i(Δs, r | s, a) = N(μ_i, diag σ_i²), i = 1..M.

PETS (Chua et al. 2018) as in MBPO, MOPO and RAVL, and NEUBAY's variant with layer norm (arXiv 2512.04341). The members'
weights are stacked, so one batched matrix product serves them; a row that needs one member is computed by it only.

Shapes legend: ``M`` members, ``m`` some of them, ``B`` rows, ``S`` observation, ``A`` action, ``D = S + 1`` targets
(Δs, r), ``P`` rows per member.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import ActionError
from worldrl.core.storage.typed import from_plain
from worldrl.core.transitions import Transitions
from worldrl.nn.stacked import StackedLayerNorm, StackedLinear, fan_in_uniform, truncated_normal
from worldrl.nn.stored import StoredModule
from worldrl.world_models.state.config import EnsembleConfig, Uncertainty, Variant

LOGVAR_LOW, LOGVAR_HIGH = -10.0, 0.5  # initial values of the learnable bounds of the log-variance (``plain``)
LOG_SIGMA_LOW, LOG_SIGMA_HIGH = -5.0, 0.25  # fixed bounds of log σ (``layer_norm``)
CONSTANT = 1e-12  # A column with a standard deviation up to this is constant; its scale is 1

Measure = Callable[[Tensor, Tensor], Tensor]
"""Means and log-variances ``[M, B, D]`` of all members to an uncertainty ``[B]``."""


# --- the density ---------------------------------------------------------------------------------------------------


def soft_clamp(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Keep ``x`` within (low, high) with gradient everywhere: u = high - softplus(high - x), low + softplus(u - low)."""
    x = high - F.softplus(high - x)
    return low + F.softplus(x - low)


def member_loss(mean: Tensor, logvar: Tensor, target: Tensor) -> Tensor:
    """Return mean_{b,d}[(μ - y)² e^{-l} + l] per member ``[M]``: twice the negative log-likelihood but a constant."""
    return ((mean - target).square() * (-logvar).exp() + logvar).mean(dim=(1, 2))


def gaussian_nll(mean: Tensor, logvar: Tensor, target: Tensor) -> Tensor:
    """Return the mean negative log-likelihood per member ``[M]``, in nats per number."""
    return 0.5 * (member_loss(mean, logvar, target) + math.log(2 * math.pi))


# --- uncertainty ---------------------------------------------------------------------------------------------------


def max_sigma(mean: Tensor, logvar: Tensor) -> Tensor:
    """MOPO's penalty: max_i ‖σ_i(s, a)‖₂ over state and reward, ``[B]``."""
    return (0.5 * logvar).exp().norm(dim=-1).amax(dim=0)


def epistemic_mean(mean: Tensor, logvar: Tensor) -> Tensor:
    """NEUBAY's ``epi_mean``: √(mean_d Var_i μ_{i,d}), the part that more data reduces, ``[B]``."""
    return mean.var(dim=0, correction=0).mean(dim=-1).sqrt()


def disagreement(mean: Tensor, logvar: Tensor) -> Tensor:
    """Return max_i ‖μ_i - μ̄‖₂ over the state alone, ``[B]`` (OfflineRL-Kit's ``pairwise-diff``)."""
    state = mean[..., :-1]
    return (state - state.mean(dim=0)).norm(dim=-1).amax(dim=0)


def total_sigma(mean: Tensor, logvar: Tensor) -> Tensor:
    """Return √(mean_d [Var_i μ_{i,d} + mean_i σ²_{i,d}]): deviation of the mixture, ``[B]`` (Lu et al. 2022)."""
    return (mean.var(dim=0, correction=0) + logvar.exp().mean(dim=0)).mean(dim=-1).sqrt()


MEASURES: Mapping[Uncertainty, Measure] = {
    Uncertainty.max_sigma: max_sigma,
    Uncertainty.epistemic_mean: epistemic_mean,
    Uncertainty.disagreement: disagreement,
    Uncertainty.total_sigma: total_sigma,
}


def sample_std(mean: Tensor, logvar: Tensor, *, generator: torch.Generator) -> Tensor:
    """COPlanner's u: mean_d Std_i x_{i,d} of one sample x_i ~ N(μ_i, σ_i²) of each member, ``[B]``."""
    noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean.device)
    return (mean + (0.5 * logvar).exp() * noise).std(dim=0).mean(dim=-1)


def measure(kind: Uncertainty, mean: Tensor, logvar: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return the uncertainty ``[B]`` of all members' predictions ``[M, B, D]``; only ``sample_std`` draws."""
    if kind is Uncertainty.sample_std:
        return sample_std(mean, logvar, generator=generator)
    return MEASURES[kind](mean, logvar)


# --- rows of each member ------------------------------------------------------------------------------------------


def balanced_members(rows: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Draw one of ``count`` members for each row, int64 ``[rows]``, uniformly, with equal shares up to one row."""
    device = generator.device
    member = torch.randperm(count, generator=generator, device=device)[torch.arange(rows, device=device) % count]
    return member[torch.randperm(rows, generator=generator, device=device)]


def group_rows(member: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Group rows by ``member`` ``[B]``: each place's row ``[m, P]`` (0 fills up), and each row's place ``[B]``."""
    order = torch.argsort(member, stable=True)
    size = torch.bincount(member, minlength=count)
    width, sorted_member = int(size.max()), member[order]
    slot = torch.arange(len(member), device=member.device) - (size.cumsum(0) - size)[sorted_member]
    place = torch.empty_like(member)
    place[order] = sorted_member * width + slot
    rows = member.new_zeros(count * width)
    rows[place] = torch.arange(len(member), device=member.device)
    return rows.view(count, width), place


# --- the networks --------------------------------------------------------------------------------------------------


class Ensemble(StoredModule):
    """``M`` networks from (s, a) to mean and log-variance of (Δs, r), with the statistics of their training.

    ``elites``, int64 ``[m]``, are the members that predict rollouts; before training they are the first ones.
    """

    kind = "state-ensemble"
    input_mean: Tensor
    input_std: Tensor
    target_shift: Tensor
    target_scale: Tensor
    elites: Tensor

    def __init__(self, config: EnsembleConfig, obs_size: int, action_size: int):
        super().__init__()
        self.config, self.obs_size, self.action_size = config, obs_size, action_size
        self.sizes = {"ensemble": config.to_json(), "obs_size": obs_size, "action_size": action_size}
        widths = [obs_size + action_size, *[config.width] * config.depth, 2 * (obs_size + 1)]
        self.layers = nn.ModuleList([StackedLinear(config.members, *pair) for pair in pairwise(widths)])
        normed = widths[1:-1] if config.variant is Variant.layer_norm else []
        self.norms = nn.ModuleList([StackedLayerNorm(config.members, width) for width in normed])
        self.logvar_low = nn.Parameter(torch.full((obs_size + 1,), LOGVAR_LOW), requires_grad=not self.norms)
        self.logvar_high = nn.Parameter(torch.full((obs_size + 1,), LOGVAR_HIGH), requires_grad=not self.norms)
        self.register_buffer("input_mean", torch.zeros(obs_size + action_size))
        self.register_buffer("input_std", torch.ones(obs_size + action_size))
        self.register_buffer("target_shift", torch.zeros(obs_size + 1))
        self.register_buffer("target_scale", torch.ones(obs_size + 1))
        self.register_buffer("elites", torch.arange(config.elites))
        for layer in self.layers:
            (fan_in_uniform if normed else truncated_normal)(layer)  # pyright: ignore[reportArgumentType]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.logvar_low.device

    def stacked(self) -> Iterator[nn.Parameter]:
        """Yield the parameters with one row per member: all but the shared bounds."""
        yield from self.layers.parameters()
        yield from self.norms.parameters()

    def fit_statistics(self, rows: Transitions) -> None:
        """Set means and deviations from ``rows``; targets are scaled only in ``layer_norm``."""
        inputs = torch.cat([rows.obs, rows.action], dim=-1).double()
        reward = rows.reward.double()
        std = _scale(inputs.std(dim=0, correction=0))
        self.input_mean.copy_(inputs.mean(dim=0))
        self.input_std.copy_(std)
        if self.config.variant is Variant.layer_norm:  # s' and s share one scaler, so Δs has no shift
            self.target_scale.copy_(torch.cat([std[: self.obs_size], _scale(reward.std(correction=0))[None]]))
            self.target_shift[-1] = reward.mean()

    def inputs(self, obs: Tensor, action: Tensor) -> Tensor:
        """Standardise (s, a): ``[..., S]`` and ``[..., A]`` to ``[..., S + A]``."""
        scaled = (torch.cat([obs, action], dim=-1) - self.input_mean) / self.input_std
        limit = self.config.input_clip
        return scaled.clamp_(-limit, limit) if limit else scaled

    def targets(self, rows: Transitions) -> Tensor:
        """Return the networks' targets: (Δs, r) ``[B, D]`` in their units."""
        change = torch.cat([rows.next_obs - rows.obs, rows.reward[:, None]], dim=-1)
        return (change - self.target_shift) / self.target_scale

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance ``[m, B, D]`` in the networks' units, of standardised ``inputs [m, B, S + A]``."""
        hidden = inputs
        for index, layer in enumerate(self.layers[:-1]):
            hidden = layer(hidden, members)
            if self.norms:
                hidden = F.leaky_relu(self.norms[index](hidden, members), inplace=not torch.is_grad_enabled())
            else:
                hidden = F.silu(hidden, inplace=not torch.is_grad_enabled())
        mean, spread = self.layers[-1](hidden, members).chunk(2, dim=-1)
        if self.norms:  # this head predicts log σ
            return mean, 2 * soft_clamp(spread, LOG_SIGMA_LOW, LOG_SIGMA_HIGH)
        return mean, soft_clamp(spread, self.logvar_low, self.logvar_high)

    def loss(self, mean: Tensor, logvar: Tensor, target: Tensor, bound_weight: float) -> Tensor:
        """Training loss of ``target [M, B, D]`` or ``[B, D]``, with ``bound_weight`` times the bounds' width."""
        if self.norms:
            return gaussian_nll(mean, logvar, target).mean()
        bounds = bound_weight * (self.logvar_high.sum() - self.logvar_low.sum())
        return member_loss(mean, logvar, target).sum() + bounds

    def predict(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of (Δs, r) ``[m, B, D]`` by members (None: all), in the data's units."""
        count = self.config.members if members is None else len(members)
        mean, logvar = self(self.inputs(obs, action).expand(count, -1, -1), members)
        return self.in_data_units(mean, logvar)

    def in_data_units(self, mean: Tensor, logvar: Tensor) -> tuple[Tensor, Tensor]:
        """Convert means and log-variances ``[..., D]`` from the networks' units to the data's."""
        return mean * self.target_scale + self.target_shift, logvar + 2 * self.target_scale.log()

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Self:
        """Make it of its folder's config."""
        config = from_plain(EnsembleConfig, stored["ensemble"], where="ensemble")
        return cls(config, stored["obs_size"], stored["action_size"])


def _scale(std: Tensor) -> Tensor:
    return torch.where(std <= CONSTANT, torch.ones_like(std), std)


def check_rows(obs: Tensor, action: Tensor, obs_size: int, action_size: int) -> None:
    """Check shapes, and that actions are finite; ActionError: with the received shapes or the first bad row."""
    if obs.ndim != 2 or obs.shape[1] != obs_size or tuple(action.shape) != (len(obs), action_size):
        raise ActionError(
            f"a world of {obs_size} observations and {action_size} actions got obs {tuple(obs.shape)} and "
            f"action {tuple(action.shape)}; give [B, {obs_size}] and [B, {action_size}]"
        )
    if not bool(action.isfinite().all()):
        row = int((~action.isfinite()).any(dim=1).nonzero()[0])
        raise ActionError(f"action[{row}] is not finite: {action[row].tolist()}; no state was changed")
