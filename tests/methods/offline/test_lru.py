"""Unit under test: ``worldrl.methods.offline.neubay.lru``."""

import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.neubay.lru import LinearRecurrence, Memory, MemoryConfig, initial_eigenvalues, scan


def loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve what ``scan`` solves, row by row: the plain definition."""
    x, rows = torch.zeros_like(b[..., 0, :]), []
    for t in range(b.shape[-2]):
        x = a[..., t, :] * x + b[..., t, :]
        rows.append(x)
    return torch.stack(rows, -2)


def made(width: int = 6, states: int = 5, layers: int = 2) -> Memory:
    with initial_weights(0, "memory"):
        return Memory(MemoryConfig(width, states, layers)).double()


def packed(rows: int, width: int = 6, *leading: int) -> tuple[Tensor, Tensor]:
    generator = stream(1, "tape", rows)
    u = torch.randn(*leading, rows, width, generator=generator, dtype=torch.float64)
    reset = torch.rand(*leading, rows, generator=generator) < 0.2
    return u, reset


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 13, 64, 101])
def test_scan_is_the_loop_and_so_are_its_gradients(rows: int) -> None:
    generator = stream(0, "scan", rows)
    size = (2, rows, 3)
    a = torch.randn(size, generator=generator, dtype=torch.complex128).mul(0.5).requires_grad_()
    b = torch.randn(size, generator=generator, dtype=torch.complex128).requires_grad_()
    weight = torch.randn(size, generator=generator, dtype=torch.complex128)
    results = []
    for solve in (scan, loop):
        x = solve(a, b)
        results.append((x, *torch.autograd.grad((x * weight).real.sum(), (a, b), allow_unused=True)))
    for fast, plain in zip(*results, strict=True):
        zeros = torch.zeros(size, dtype=torch.complex128)
        torch.testing.assert_close(zeros if fast is None else fast, zeros if plain is None else plain)


def test_scan_against_a_hand_computed_row() -> None:
    a = torch.tensor([[9.0], [2.0], [0.0], [3.0]])
    b = torch.tensor([[1.0], [1.0], [5.0], [1.0]])
    assert scan(a, b).flatten().tolist() == [1.0, 3.0, 5.0, 16.0]  # the zero forgets, the first factor has no past


def test_recurrence_is_its_equation() -> None:
    with initial_weights(3, "lru"):
        unit = LinearRecurrence(4, 3, 0.2, 0.8).double()
    u, reset = packed(11, 4)
    y, last = unit(u, reset, torch.zeros(3, dtype=torch.complex128))
    lam, gamma = unit.eigenvalues(), unit.gamma_log.exp()
    x = torch.zeros(3, dtype=torch.complex128)
    for t in range(11):
        x = (0 if reset[t] else lam) * x + gamma * (torch.complex(unit.b_re, unit.b_im) @ u[t].to(torch.complex128))
        expected = (torch.complex(unit.c_re, unit.c_im) @ x).real + unit.d * u[t]
        torch.testing.assert_close(y[t], expected)
    torch.testing.assert_close(last, x)


@pytest.mark.parametrize("leading", [(), (3,)])
def test_step_by_step_is_the_tape(leading: tuple[int, ...]) -> None:
    memory = made()
    u, reset = packed(23, 6, *leading)
    whole, last = memory(u, reset)
    state, rows = memory.initial_state(*leading), []
    for t in range(23):
        y, state = memory(u[..., t : t + 1, :], reset[..., t : t + 1], state)
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, -2), whole)
    torch.testing.assert_close(state, last)


def test_nothing_crosses_a_reset_and_everything_else_reaches_forward_only() -> None:
    memory = made()
    u, _ = packed(10)
    reset = torch.zeros(10, dtype=torch.bool)
    reset[[0, 6]] = True
    plain, _ = memory(u, reset)
    changed = u.clone()
    changed[2, 0] += 1  # one feature: the layer norm would not see a shift of all
    moved = (memory(changed, reset)[0] - plain).abs().amax(-1) > 1e-9
    assert moved.tolist() == [False, False, True, True, True, True, False, False, False, False]


def test_initial_eigenvalues_lie_on_the_ring() -> None:
    nu_log, theta_log = initial_eigenvalues(4000, 0.3, 0.9, generator=stream(0, "ring"))
    radius = torch.exp(-nu_log.exp())
    assert radius.min() >= 0.3
    assert radius.max() <= 0.9
    assert abs(float((radius**2).mean()) - (0.3**2 + 0.9**2) / 2) < 0.01  # uniform in area
    assert abs(float(theta_log.exp().mean()) - torch.pi) < 0.1


def test_radius_zero_is_finite() -> None:
    with initial_weights(0, "zero"):
        memory = Memory(MemoryConfig(3, 4, 1, 0.0, 0.0))
    y, _ = memory(torch.ones(5, 3), torch.zeros(5, dtype=torch.bool))
    assert bool(y.isfinite().all())


@pytest.mark.parametrize("wrong", [{"width": 0}, {"radius_max": 1.0}, {"radius_min": 0.95}])
def test_config_refuses(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        MemoryConfig(**wrong)  # pyright: ignore[reportArgumentType]
