"""Networks of the offline agents: actors, values, and critics with the weights of ``N`` members stacked.

A layer of all members is one batched product, y_i = x_i W_i + b_i (``baddbmm``). A Gaussian actor squashed by tanh has
log π(a|s) = log N(u; μ, σ) − Σ log(1 − tanh² u) with a = tanh u (SAC, Appendix C).

Shapes legend: ``B`` rows, ``S`` observation, ``A`` action, ``N`` critics, ``H`` hidden width.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.nn.stacked import StackedLayerNorm, StackedLinear, fan_in_uniform

LOG_STD_BOUNDS = (-5.0, 2.0)  # of EDAC and RAVL; SAC's own lower bound is −20
EDAC_BIAS = 0.1
EDAC_ACTOR, EDAC_CRITIC = 1e-3, 3e-3  # half-widths of the uniform initial weights of last layers
ATANH_MARGIN = 1e-6
MANY_MEMBERS = 4  # number of critics from which :func:`least_q` is cheaper than a minimum


# --- plain networks -------------------------------------------------------------------------------------------------


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, layer_norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, optionally normalised before it; PyTorch's own initial weights."""
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(first, second), *([nn.LayerNorm(second)] if layer_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def edac_actor_init(net: nn.Sequential) -> None:
    """EDAC's initial weights: hidden biases 0.1, last layer U(±1e-3)."""
    *hidden, last = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in hidden:
        nn.init.constant_(layer.bias, EDAC_BIAS)
    nn.init.uniform_(last.weight, -EDAC_ACTOR, EDAC_ACTOR)
    nn.init.uniform_(last.bias, -EDAC_ACTOR, EDAC_ACTOR)


class ValueNet(nn.Module):
    """V(s): ``[B, S]`` to ``[B]``."""

    def __init__(self, obs_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(obs_size, hidden, 1)

    def forward(self, obs: Tensor) -> Tensor:
        """Return values ``[B]``."""
        return self.net(obs).squeeze(-1)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Compute no gradients of a module's weights, only through it: a compiled backward pass would compute them too."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


# --- actors ---------------------------------------------------------------------------------------------------------


class Gaussian(NamedTuple):
    """Mean and log standard deviation, ``[B, A]`` each, before any squashing."""

    mean: Tensor
    log_std: Tensor


class DeterministicActor(nn.Module):
    """π(s) = tanh(net(s)): ``[B, S]`` to ``[B, A]``."""

    def __init__(self, obs_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(obs_size, hidden, action_size)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions in [-1, 1]."""
        return self.net(obs).tanh()


class SquashedActor(nn.Module):
    """μ(s), log σ(s) of a Gaussian that tanh squashes."""

    def __init__(self, obs_size: int, action_size: int, hidden: Sequence[int], *, layer_norm: bool = False) -> None:
        super().__init__()
        self.net = mlp(obs_size, hidden, 2 * action_size, layer_norm=layer_norm)
        edac_actor_init(self.net)

    def forward(self, obs: Tensor) -> Gaussian:
        """Return the Gaussian before tanh."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return Gaussian(mean, log_std.clamp(*LOG_STD_BOUNDS))


class BoundedActor(nn.Module):
    """μ(s) = tanh(net(s)) and a σ independent of the state: IQL's policy, a Gaussian without squashing."""

    def __init__(self, obs_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(obs_size, hidden, action_size)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, obs: Tensor) -> Gaussian:
        """Return the Gaussian; its samples are clipped to [-1, 1]."""
        mean = self.net(obs).tanh()
        return Gaussian(mean, self.log_std.clamp(*LOG_STD_BOUNDS).expand_as(mean))


def normal_log_prob(gaussian: Gaussian, value: Tensor) -> Tensor:
    """Log-density ``[B]`` of ``value [B, A]`` under independent normals."""
    scaled = (value - gaussian.mean) * (-gaussian.log_std).exp()
    return (-0.5 * scaled.square() - gaussian.log_std - 0.5 * math.log(2 * math.pi)).sum(dim=-1)


def log_squash(raw: Tensor) -> Tensor:
    """log(1 − tanh² u), without loss of digits where tanh is nearly 1: 2 (log 2 − u − softplus(−2u))."""
    return 2 * (math.log(2) - raw - F.softplus(-2 * raw))


def squashed_sample(gaussian: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw with standard normal ``noise [..., B, A]``: action ``[..., B, A]`` and its log-density ``[..., B]``."""
    raw = gaussian.mean + gaussian.log_std.exp() * noise
    logp = (-0.5 * noise.square() - gaussian.log_std - 0.5 * math.log(2 * math.pi) - log_squash(raw)).sum(dim=-1)
    return raw.tanh(), logp


def squashed_log_prob(gaussian: Gaussian, action: Tensor) -> Tensor:
    """Log-density ``[B]`` of given actions; those at ±1 are moved inside by 1e-6, where the density is finite."""
    raw = action.clamp(ATANH_MARGIN - 1, 1 - ATANH_MARGIN).atanh()
    return normal_log_prob(gaussian, raw) - log_squash(raw).sum(dim=-1)


# --- critics --------------------------------------------------------------------------------------------------------


class StackedCritic(nn.Module):
    """Q_i(s, a) of ``N`` members at once, with EDAC's initial weights; ``layer_norm`` normalises before each ReLU."""

    def __init__(
        self, obs_size: int, action_size: int, hidden: Sequence[int], members: int, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        sizes = [obs_size + action_size, *hidden, 1]
        self.members = members
        pairs = itertools.pairwise(sizes)
        self.linears: Any = nn.ModuleList(StackedLinear(members, *pair) for pair in pairs)
        self.norms: Any = nn.ModuleList(StackedLayerNorm(members, width) for width in hidden if layer_norm)
        for linear in self.linears[:-1]:
            fan_in_uniform(linear)
            nn.init.constant_(linear.bias, EDAC_BIAS)
        for parameter in self.linears[-1].parameters():
            nn.init.uniform_(parameter, -EDAC_CRITIC, EDAC_CRITIC)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Value pairs ``[B, S]``, ``[B, A]``, or ``[N, B, ...]`` with rows of each member's own: ``[N, B]``."""
        pair = (obs.expand(self.members, -1, -1), action.expand(self.members, -1, -1))
        x = torch.cat(pair, dim=-1)  # [N, B, S + A]
        for depth, linear in enumerate(self.linears[:-1]):
            x = linear(x)
            x = (self.norms[depth](x) if self.norms else x).relu()
        return self.linears[-1](x).squeeze(-1)

    def member(self, number: int, obs: Tensor, action: Tensor) -> Tensor:
        """Value pairs ``[B, S]``, ``[B, A]`` by one member: ``[B]``."""
        x = torch.cat((obs, action), dim=-1)
        for depth, linear in enumerate(self.linears[:-1]):
            x = torch.addmm(linear.bias[number], x, linear.weight[number])
            if self.norms:
                norm = self.norms[depth]
                x = F.layer_norm(x, x.shape[-1:]) * norm.weight[number] + norm.bias[number]
            x = x.relu()
        last = self.linears[-1]
        return torch.addmm(last.bias[number], x, last.weight[number]).squeeze(-1)


def least_q(critic: StackedCritic, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return min_i Q_i(s, a) ``[B]`` with its gradient, and all members' values ``[N, B]`` without.

    A row's gradient flows through its least member, which alone is evaluated again: 1 + 3/N forward passes instead of
    2.
    """
    at_once = (
        obs.is_cuda or torch.compiler.is_compiling()
    )  # a loop over members would keep a GPU waiting, and has no graph
    if at_once or critic.members < MANY_MEMBERS:
        q = critic(obs, action)
        return q.min(dim=0).values, q.detach()
    with torch.no_grad():
        q = critic(obs, action)
    least = q.argmin(dim=0)
    order = least.argsort()
    sizes = torch.bincount(least, minlength=critic.members).tolist()
    rows = order.split(sizes)
    parts = [critic.member(i, obs[index], action[index]) for i, index in enumerate(rows) if len(index)]
    return torch.zeros_like(q[0]).index_copy(0, order, torch.cat(parts)), q
