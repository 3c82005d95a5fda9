"""EDM against its published constants, its identities, and the one distribution whose ODE has a closed form."""

import math
from itertools import pairwise

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.diffusion.edm import (
    denoised,
    draw_noise,
    draw_sigma,
    flow_level,
    fold_offset,
    heun_step,
    karras_grid,
    loss_weight,
    precondition,
)
from worldrl.diffusion.flow import add_noise, euler_step

LEVELS = torch.tensor([2e-3, 0.1, 0.5, 5.0, 80.0], dtype=torch.float64)
DATA = 0.5


# --- preconditioning -----------------------------------------------------------------------------------------------


def test_factors_where_noise_and_data_are_equally_large():
    """Table 1 at σ = σ_data = 1/2, by hand."""
    scale = precondition(torch.tensor([0.5], dtype=torch.float64), DATA)
    by_hand = (0.5, math.sqrt(1 / 8), math.sqrt(2), math.log(0.5) / 4)
    assert [factor.item() for factor in scale] == pytest.approx(by_hand)


def test_network_input_and_target_have_unit_variance():
    """Eq. 7 and Appendix B.6: of c_in·x, and of (y - c_skip·x)/c_out, for data of variance σ_data²."""
    c_skip, c_out, c_in, _ = precondition(LEVELS, DATA)
    one = torch.ones_like(LEVELS)
    torch.testing.assert_close(c_in**2 * (LEVELS**2 + DATA**2), one)
    torch.testing.assert_close(((1 - c_skip) ** 2 * DATA**2 + c_skip**2 * LEVELS**2) / c_out**2, one)
    torch.testing.assert_close(loss_weight(LEVELS, DATA) * c_out**2, one)


def test_without_noise_the_denoiser_is_the_identity_whatever_the_network_says():
    x, wild = (torch.randn(3, 2, 4, 4, generator=stream(0, name), dtype=torch.float64) for name in ("x", "wild"))
    sigma = torch.tensor([1e-3, 1e-6, 1e-9], dtype=torch.float64)
    error = (denoised(x, wild, precondition(sigma, DATA)) - x).flatten(1).norm(dim=1) / (wild - x).flatten(1).norm(
        dim=1
    )
    assert (error < 5 * sigma).all()


def test_a_squared_error_of_the_estimate_is_weighted_to_be_the_networks():
    """Eq. 8: λ(σ)·|D - y|² = |F - (y - c_skip·x)/c_out|²."""
    draw = stream(0, "edm")
    clean, noise, output = (torch.randn(5, 3, 4, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    scale, axes = precondition(LEVELS, DATA), (-1, 1, 1, 1)
    x = clean + LEVELS.view(axes) * noise
    target = (clean - scale.c_skip.view(axes) * x) / scale.c_out.view(axes)
    left = loss_weight(LEVELS, DATA).view(axes) * (denoised(x, output, scale) - clean) ** 2
    torch.testing.assert_close(left, (output - target) ** 2)


def test_level_of_the_flow_that_sees_as_much():
    clean, noise = (torch.randn(5, 2, 3, 3, generator=stream(0, name), dtype=torch.float64) for name in ("y", "n"))
    axes = (-1, 1, 1, 1)
    x = clean + LEVELS.view(axes) * noise
    torch.testing.assert_close(x / (1 + LEVELS).view(axes), add_noise(clean, noise, flow_level(LEVELS)))


# --- training ------------------------------------------------------------------------------------------------------


def test_training_levels_are_log_normal_and_cut_off():
    settings = {"mean": -0.4, "std": 1.2, "lowest": 2e-3, "highest": 20.0}
    sigma = draw_sigma(40_000, **settings, generator=stream(0, "sigma"))
    assert sigma.log().mean().item() == pytest.approx(-0.4, abs=0.02)
    assert sigma.log().std().item() == pytest.approx(1.2, abs=0.02)
    assert sigma.log().median().item() == pytest.approx(-0.4, abs=0.03)
    narrow = draw_sigma(1000, mean=-0.4, std=1.2, lowest=0.5, highest=1.0, generator=stream(0, "sigma"))
    assert (narrow.min().item(), narrow.max().item()) == (0.5, 1.0)


def test_offset_noise_moves_whole_channels_and_is_an_input_of_the_network():
    sigma = torch.tensor([0.1, 1.0]).repeat(2000)
    noise = draw_noise((4000, 2, 8, 8), sigma, 0.3, stream(0, "noise"))
    for row, level in enumerate((0.1, 1.0)):
        rows = noise[row::2]
        told = fold_offset(torch.tensor([level]), 0.3).item()
        assert rows.std().item() == pytest.approx(told, rel=0.02)
        within = rows - rows.mean(dim=(2, 3), keepdim=True)
        assert within.std().item() == pytest.approx(level, rel=0.02)
        assert rows.mean(dim=(2, 3)).std().item() == pytest.approx(math.hypot(0.3, level / 8), rel=0.03)
    assert torch.equal(fold_offset(sigma, 0.0), sigma)


# --- sampling ------------------------------------------------------------------------------------------------------


def test_grid_runs_between_the_levels_with_equal_steps_of_the_root():
    """Eq. 5, with EDM's own values (σ from 80 to 0.002, ρ = 7) and DIAMOND's (three steps from 5)."""
    grid = karras_grid(18, 2e-3, 80.0, 7.0)
    assert (len(grid), grid[0].item(), grid[-1].item()) == (19, pytest.approx(80), 0)
    assert grid[-2].item() == pytest.approx(2e-3, rel=1e-4)
    assert grid[1].item() == pytest.approx(57.586, rel=1e-4)
    steps = grid[:-1].double() ** (1 / 7)
    torch.testing.assert_close(steps.diff(), steps.diff().mean().expand(17), rtol=1e-4, atol=0)
    three = karras_grid(3, 2e-3, 5.0, 7.0)
    assert three.tolist() == pytest.approx([5, ((5 ** (1 / 7) + 0.002 ** (1 / 7)) / 2) ** 7, 2e-3, 0], rel=1e-4)
    assert karras_grid(1, 2e-3, 5.0, 7.0).tolist() == [5, 0]


def _gaussian(x, sigma):
    """The best denoiser of data ~ N(0, σ_data²): the network's part is 0."""
    return denoised(x, torch.zeros_like(x), precondition(sigma, DATA))


def _integrate(steps, order):
    """Carry x from σ = 5 to 0.01; return the error against the closed form x(σ) = x₀·√((σ² + σ_d²)/(σ₀² + σ_d²))."""
    grid = karras_grid(steps + 1, 0.01, 5.0, 7.0)[:-1].double()
    x = start = torch.tensor([[1.7]], dtype=torch.float64)
    for sigma, sigma_next in pairwise(grid[:, None]):
        ahead = euler_step(x, _gaussian(x, sigma), sigma, sigma_next)
        if order == 2:
            ahead = heun_step(x, _gaussian(x, sigma), ahead, _gaussian(ahead, sigma_next), sigma, sigma_next)
        x = ahead
    exact = start * ((grid[-1] ** 2 + DATA**2) / (grid[0] ** 2 + DATA**2)).sqrt()
    return (x - exact).abs().item()


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_of_convergence_is_the_declared_one(order):
    errors = [_integrate(steps, order) for steps in (64, 128, 256)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.12)


def test_a_heun_step_with_equal_slopes_is_eulers():
    x = torch.randn(4, 3, generator=stream(0, "x"), dtype=torch.float64)
    sigma, sigma_next = torch.full((4,), 2.0, dtype=torch.float64), torch.full((4,), 1.0, dtype=torch.float64)
    target = torch.zeros_like(x)  # one data point: the path is straight
    ahead = euler_step(x, target, sigma, sigma_next)
    torch.testing.assert_close(heun_step(x, target, ahead, target, sigma, sigma_next), ahead)
