from itertools import pairwise

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.diffusion.flow import (
    add_noise,
    draw_refinement,
    draw_sigma,
    euler_step,
    refinement_grid,
    shift_sigma,
    sigma_grid,
    velocity,
)


@pytest.fixture
def pair():
    draw = stream(0, "flow")
    return [torch.randn(5, 3, 2, 4, 4, generator=draw, dtype=torch.float64) for _ in range(2)]


SIGMA = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01], dtype=torch.float64)


def test_noising_ends_at_data_and_noise(pair):
    clean, noise = pair
    torch.testing.assert_close(add_noise(clean, noise, torch.zeros(5)), clean)
    torch.testing.assert_close(add_noise(clean, noise, torch.ones(5)), noise)


def test_velocity_is_noise_minus_data(pair):
    clean, noise = pair
    torch.testing.assert_close(velocity(add_noise(clean, noise, SIGMA), clean, SIGMA), noise - clean)


def test_a_step_to_zero_lands_on_the_prediction_whatever_it_is(pair):
    clean, x = pair
    torch.testing.assert_close(euler_step(x, clean, SIGMA, torch.zeros(5, dtype=torch.float64)), clean)


def test_one_step_from_pure_noise_with_the_exact_predictor_recovers_the_data(pair):
    clean, noise = pair
    one, zero = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(euler_step(add_noise(clean, noise, one), clean, one, zero), clean)


def test_each_step_with_the_exact_predictor_stays_on_the_straight_path(pair):
    clean, noise = pair
    grid = sigma_grid(4, shift=3.0).double()
    x = noise
    for now, after in pairwise(grid):
        x = euler_step(x, clean, now.expand(5), after.expand(5))
        torch.testing.assert_close(x, add_noise(clean, noise, after.expand(5)))


def test_grids_in_closed_form():
    torch.testing.assert_close(sigma_grid(4), torch.tensor([1, 0.75, 0.5, 0.25, 0]))
    torch.testing.assert_close(sigma_grid(2, shift=3.0), torch.tensor([1, 0.75, 0]))
    assert sigma_grid(1).tolist() == [1, 0]
    for shift in (0.5, 1.0, 5.0):
        grid = sigma_grid(10, shift)
        assert (grid.diff() < 0).all()
        assert (grid[0], grid[-1]) == (1, 0)


def test_shifts_compose_by_multiplication():
    sigma = torch.linspace(0, 1, 21, dtype=torch.float64)
    torch.testing.assert_close(shift_sigma(shift_sigma(sigma, 2.0), 3.0), shift_sigma(sigma, 6.0))
    torch.testing.assert_close(shift_sigma(shift_sigma(sigma, 4.0), 0.25), sigma)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_training_levels_have_their_share_of_pure_noise(share):
    sigma = draw_sigma(20_000, pure_noise_share=share, shift=1.0, generator=stream(0, "sigma"))
    assert ((sigma > 0) & (sigma <= 1)).all()
    pure = sigma == 1
    assert pure.double().mean().item() == pytest.approx(share, abs=0.015)
    if share < 1:  # the rest is uniform
        assert sigma[~pure].mean().item() == pytest.approx(0.5, abs=0.015)
        assert (sigma[~pure] < 0.25).double().mean().item() == pytest.approx(0.25, abs=0.015)


def test_training_levels_shift_and_follow_their_generator():
    def draw(shift, seed=0):
        return draw_sigma(1000, pure_noise_share=0.0, shift=shift, generator=stream(seed, "sigma"))

    torch.testing.assert_close(draw(3.0), shift_sigma(draw(1.0), 3.0))
    assert torch.equal(draw(1.0), draw(1.0))
    assert not torch.equal(draw(1.0), draw(1.0, seed=1))


# --- refinement ----------------------------------------------------------------------------------------------------


def test_refinement_levels_fall_by_equal_factors_to_the_smallest():
    assert refinement_grid(0, 0.02).tolist() == []
    assert refinement_grid(1, 0.02).tolist() == pytest.approx([0.02])
    assert refinement_grid(3, 0.008).tolist() == pytest.approx([0.2, 0.04, 0.008])


def test_small_levels_are_drawn_in_training_but_seldom():
    """No refinement level is left out; below σ lie (1 - pure noise share)·σ of the rows."""
    sigma = draw_sigma(200_000, pure_noise_share=0.5, shift=1.0, generator=stream(0, "sigma"))
    for level in (0.02, 0.1, 0.4):
        assert (sigma <= level).float().mean().item() == pytest.approx(0.5 * level, rel=0.05)


def test_a_share_of_the_rows_learns_to_refine_at_every_level_alike():
    sigma = draw_sigma(60_000, pure_noise_share=0.5, shift=1.0, generator=stream(0, "sigma"))
    levels = refinement_grid(3, 0.008)
    drawn = draw_refinement(sigma, levels, 0.3, stream(0, "refine"))
    for level in levels:
        assert (drawn == level).float().mean().item() == pytest.approx(0.1, abs=0.005)
    kept = ~torch.isin(drawn, levels)
    assert torch.equal(drawn[kept], sigma[kept])
    assert torch.equal(draw_refinement(sigma, levels, 0.0, stream(0, "refine")), sigma)
