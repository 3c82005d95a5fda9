r"""Linear recurrent unit: one parallel scan processes a whole sequence, one multiplication the next step.

Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences" (2023)::

    x_t = λ ⊙ x_{t-1} + γ ⊙ B u_t          λ = exp(-exp(ν) + i exp(θ)),  γ = sqrt(1 - |λ|²) at the start, learned
    y_t = Re(C x_t) + D ⊙ u_t

With λ ← 0 where an episode begins, many episodes form one packed sequence and no state crosses their borders.
The recurrence is associative, (a₁, b₁) then (a₂, b₂) is (a₂a₁, a₂b₁ + b₂), so a sequence of ``T`` rows takes 2 log₂ T
vector operations (:func:`scan`) instead of ``T``.

Shapes legend: ``R`` leading axes (rollouts, or none), ``T`` rows of packed sequences, ``d`` width, ``n`` complex states.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import SettingError, require_at_least_one

SMALLEST = 1e-8  # smallest value under a logarithm


@dataclass(frozen=True)
class MemoryConfig:
    """Sizes of a stack of recurrent layers."""

    width: int = 256  # d, features in and out.
    states: int = 128  # n, complex states per layer.
    layers: int = 2  # how many.
    radius_min: float = 0.0  # smallest modulus of λ at the start.
    radius_max: float = 0.9  # largest modulus of λ at the start, below 1; memories last about 1 / (1 - modulus) rows.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("width", "states", "layers"), of="memory")
        if not 0 <= self.radius_min <= self.radius_max < 1:
            raise SettingError(
                f"memory: needs 0 <= radius_min <= radius_max < 1, got {self.radius_min} and {self.radius_max}"
            )


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Solve ``x_t = a_t x_{t-1} + b_t`` from ``x_{-1} = 0`` along axis -2 of ``[..., T, n]``, real or complex; differentiable."""
    solved: Tensor = _Scan.apply(a, b)
    return solved


class _Scan(torch.autograd.Function):
    """A linear recurrence, whose gradient is the reverse recurrence with conjugate factors.

        G_t = g_t + a*_{t+1} G_{t+1}          ∂b_t = G_t,  ∂a_t = G_t x*_{t-1}

    Autograd would store every level of the solution instead.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = _solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        after = torch.cat([a[..., 1:, :], torch.zeros_like(a[..., :1, :])], -2).conj()
        whole = _solve(after.flip(-2), grads[0].flip(-2)).flip(-2)
        before = torch.cat([torch.zeros_like(x[..., :1, :]), x[..., :-1, :]], -2).conj()
        return whole * before, whole


def _solve(a: Tensor, b: Tensor) -> Tensor:
    """Merge neighbours in pairs, solve the half-length problem, fill in the even rows: about 2 T products."""
    rows = b.shape[-2]
    if rows == 1:
        return b
    pairs = rows // 2
    even_a, odd_a = a[..., : 2 * pairs : 2, :], a[..., 1::2, :]
    even_b, odd_b = b[..., : 2 * pairs : 2, :], b[..., 1::2, :]
    odd = _solve(odd_a * even_a, torch.addcmul(odd_b, odd_a, even_b))
    x = torch.empty_like(b)
    x[..., 1::2, :] = odd
    x[..., :1, :] = b[..., :1, :]
    x[..., 2::2, :] = torch.addcmul(b[..., 2::2, :], a[..., 2::2, :], odd[..., : (rows - 1) // 2, :])
    return x


def initial_eigenvalues(
    states: int, radius_min: float, radius_max: float, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw ``log ν`` and ``log θ``, ``[n]``: λ uniform in area on the ring radius_min ≤ |λ| ≤ radius_max."""
    squared = torch.rand(states, generator=generator) * (radius_max**2 - radius_min**2) + radius_min**2
    phase = 2 * math.pi * torch.rand(states, generator=generator)
    nu = -0.5 * squared.clamp(min=SMALLEST).log()
    return nu.log(), phase.clamp(min=SMALLEST).log()


class LinearRecurrence(nn.Module):
    """The recurrence alone, ``[*R, T, d]`` to ``[*R, T, d]``."""

    def __init__(self, width: int, states: int, radius_min: float, radius_max: float) -> None:
        super().__init__()
        nu_log, theta_log = initial_eigenvalues(states, radius_min, radius_max)
        self.nu_log, self.theta_log = nn.Parameter(nu_log), nn.Parameter(theta_log)
        radius = torch.exp(-nu_log.exp())
        self.gamma_log = nn.Parameter(0.5 * torch.log(1 - radius**2))
        self.b_re = nn.Parameter(torch.randn(states, width) / math.sqrt(2 * width))
        self.b_im = nn.Parameter(torch.randn(states, width) / math.sqrt(2 * width))
        self.c_re = nn.Parameter(torch.randn(width, states) / math.sqrt(states))
        self.c_im = nn.Parameter(torch.randn(width, states) / math.sqrt(states))
        self.d = nn.Parameter(torch.randn(width))

    def eigenvalues(self) -> Tensor:
        """Return λ, complex ``[n]``, inside the unit circle whatever the parameters."""
        return torch.polar(torch.exp(-self.nu_log.exp()), self.theta_log.exp())

    def forward(self, u: Tensor, reset: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run over packed ``u [*R, T, d]``: y of the same shape, and the state ``[*R, n]`` after the last row.

        True in ``reset [*R, T]`` begins an episode, which clears the state; ``state=None`` is zeros.
        """
        gamma = self.gamma_log.exp().unsqueeze(-1)
        driven = torch.complex(F.linear(u, gamma * self.b_re), F.linear(u, gamma * self.b_im))
        decay = self.eigenvalues() * (~reset).unsqueeze(-1)
        first = driven[..., :1, :] + decay[..., :1, :] * state.unsqueeze(-2)
        x = scan(decay, torch.cat([first, driven[..., 1:, :]], -2))
        y = F.linear(x.real, self.c_re) - F.linear(x.imag, self.c_im) + self.d * u
        return y, x[..., -1, :]


class RecurrentLayer(nn.Module):
    """Pre-norm, recurrence, GELU, gated linear unit, skip: ``u + GLU(GELU(LRU(LN(u))))``."""

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.recurrence = LinearRecurrence(config.width, config.states, config.radius_min, config.radius_max)
        self.gate = nn.Linear(config.width, 2 * config.width)

    def forward(self, u: Tensor, reset: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run over packed sequences; shapes as :meth:`LinearRecurrence.forward`."""
        y, state = self.recurrence(self.norm(u), reset, state)
        return u + F.glu(self.gate(F.gelu(y))), state


class Memory(nn.Module):
    """A stack of recurrent layers; its state is ``[*R, layers, n]`` complex."""

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(RecurrentLayer(config) for _ in range(config.layers))

    def initial_state(self, *leading: int) -> Tensor:
        """Return the empty memory, zeros ``[*leading, layers, n]``."""
        like = next(self.parameters())
        dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        return torch.zeros(*leading, self.config.layers, self.config.states, dtype=dtype, device=like.device)

    def forward(self, u: Tensor, reset: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run over packed sequences as :meth:`LinearRecurrence.forward`, with states ``[*R, layers, n]`` (None: zeros)."""
        state = self.initial_state(*u.shape[:-2]) if state is None else state
        after = []
        for index, layer in enumerate(self.layers):
            u, last = layer(u, reset, state[..., index, :])
            after.append(last)
        return u, torch.stack(after, -2)
