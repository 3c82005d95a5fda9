"""The Gaussian step: the published forms of its mean, its log-probability, its limits, and the noise it leaves behind."""

import math

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import row_noise, row_streams, stream
from worldrl.diffusion.flow import euler_step
from worldrl.diffusion.sde import (
    Denoising,
    RatioRule,
    cps_mean,
    cps_std,
    flow_grpo_scale,
    gaussian_kl,
    gaussian_log_prob,
    linear_scale,
    make_schedule,
    sde_mean,
    sde_std,
)

SIGMA = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.03], dtype=torch.float64)
NEXT = torch.tensor([0.9, 0.5, 0.25, 0.05, 0.0], dtype=torch.float64)
SCALE = torch.tensor([0.3, 0.7, 1.4, 0.01, 2.0], dtype=torch.float64)


@pytest.fixture
def rows():
    """Samples, velocities and next samples ``[5, 3, 2, 4, 4]`` in float64."""
    draw = stream(0, "sde")
    return [torch.randn(5, 3, 2, 4, 4, generator=draw, dtype=torch.float64) for _ in range(3)]


def wide(value):
    return value.view(-1, 1, 1, 1, 1)


def test_the_published_forms_of_the_mean_are_one(rows):
    """Flow-GRPO's, DanceGRPO's with the score, and πRL's weights of clean sample and noise."""
    x, v, _ = rows
    sigma, after, s = wide(SIGMA), wide(NEXT), wide(SCALE)
    dt = after - sigma
    flow_grpo = x * (1 + s**2 / (2 * sigma) * dt) + v * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
    clean = x - sigma * v
    score = -(x - clean * (1 - sigma)) / sigma**2
    dance = x + v * dt - 0.5 * s**2 * score * dt
    noise = x + (1 - sigma) * v
    pi = clean * (1 - (sigma + dt)) + noise * (sigma + dt + s**2 * dt / (2 * sigma))
    mean = sde_mean(x, v, SIGMA, NEXT, SCALE)
    for form in (flow_grpo, dance, pi):
        assert (mean - form).abs().max() < 1e-12


def test_log_probability_is_that_of_torch(rows):
    _, mean, value = rows
    std = sde_std(SIGMA, NEXT, SCALE)
    torch.testing.assert_close(std, torch.sqrt(SCALE**2 * (SIGMA - NEXT)))
    each = torch.distributions.Normal(mean, wide(std).expand_as(mean)).log_prob(value).flatten(1)
    for reduce in ("mean", "sum"):
        expected = getattr(each, reduce)(dim=1)
        torch.testing.assert_close(gaussian_log_prob(value, mean, std, reduce), expected, rtol=1e-12, atol=1e-12)
    normals = [torch.distributions.Normal(m, wide(std).expand_as(m)) for m in (mean, value)]
    kl = torch.distributions.kl_divergence(*normals).flatten(1).mean(dim=1)
    torch.testing.assert_close(gaussian_kl(mean, value, std), kl, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", [sde_mean, cps_mean])
def test_without_noise_a_step_is_eulers(rows, step):
    x, v, _ = rows
    clean = x - wide(SIGMA) * v
    expected = euler_step(x, clean, SIGMA, NEXT)
    assert (step(x, v, SIGMA, NEXT, torch.zeros(5, dtype=torch.float64)) - expected).abs().max() < 1e-12
    little = torch.full((5,), 1e-6, dtype=torch.float64)
    assert (step(x, v, SIGMA, NEXT, little) - expected).abs().max() < 1e-9


def excess_noise(sigma, sigma_next, scale):
    """Variance beyond σ'² after an SDE step of a perfect predictor: s²δ²/σ + s⁴δ²/4σ², with δ = σ - σ'."""
    ratio = (scale * (sigma - sigma_next)).square()
    return ratio / sigma + ratio * scale.square() / (4 * sigma.square())


def test_excess_noise_of_a_perfect_predictor():
    """x = (1-σ)z + σε with z and ε known: the coefficient of the old noise and the new one make σ'² and the excess."""
    zero, one = torch.zeros(5, 1, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    old = sde_mean(SIGMA[:, None] * one, one, SIGMA, NEXT, SCALE)[:, 0]  # z = 0, ε = 1: x = σ, v = 1
    picture = sde_mean((1 - SIGMA)[:, None] * one, -one, SIGMA, NEXT, SCALE)[:, 0]  # z = 1, ε = 0
    variance = old**2 + sde_std(SIGMA, NEXT, SCALE) ** 2
    torch.testing.assert_close(variance - NEXT**2, excess_noise(SIGMA, NEXT, SCALE), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(picture, 1 - NEXT)
    eta = torch.full((5,), 0.6, dtype=torch.float64)
    kept = cps_mean(SIGMA[:, None] * one, one, SIGMA, NEXT, eta)[:, 0]
    torch.testing.assert_close(kept**2 + cps_std(NEXT, eta) ** 2, NEXT**2)
    assert cps_std(zero[:, 0], eta).abs().max() == 0


@pytest.mark.parametrize(
    ("eta", "steps", "left"), [(0.5, 4, 0.150), (0.5, 10, 0.055), (0.7, 4, 0.218), (0.3, 10, 0.032)]
)
def test_the_cost_of_a_noisy_last_step(eta, steps, left):
    """The figures that speak for an ODE step at the end, on a uniform grid."""
    sigma = torch.tensor([1 / steps], dtype=torch.float64)
    scale = flow_grpo_scale(sigma, eta, sigma)
    assert math.sqrt(excess_noise(sigma, torch.zeros_like(sigma), scale)) == pytest.approx(left, abs=1e-3)


def test_scales_follow_their_formulas():
    sigma = torch.tensor([1.0, 0.75, 0.5], dtype=torch.float64)
    expected = [0.7 * math.sqrt(1 / 0.25), 0.7 * math.sqrt(3), 0.7]
    assert flow_grpo_scale(sigma, 0.7, sigma[1]).tolist() == pytest.approx(expected)
    assert linear_scale(sigma, 0.1, 0.5).tolist() == pytest.approx([0.5, 0.4, 0.3])


def test_the_last_step_and_those_outside_the_window_are_the_odes():
    assert make_schedule(Denoising(steps=4)).noisy == [0, 1, 2]
    assert make_schedule(Denoising(steps=6, noise="constant", noisy_from=1, noisy_steps=2)).noisy == [1, 2]
    assert make_schedule(Denoising(steps=3, noise="none")).noisy == []
    for config in (
        Denoising(steps=1),
        Denoising(steps=4, noisy_from=2, noisy_steps=2),
        Denoising(steps=3, noisy_from=2),
    ):
        with pytest.raises(SettingError, match="denoising"):
            make_schedule(config)


@pytest.mark.parametrize("noise", ["flow_grpo", "constant", "linear", "cps"])
def test_rows_at_steps_of_their_own_are_rows_alone(rows, noise):
    x, clean, _ = (row.float() for row in rows)
    schedule = make_schedule(Denoising(steps=5, noise=noise, eta=0.4, eta_low=0.1))
    step = torch.tensor([3, 0, 4, 1, 2])
    mean, std = schedule.transition(x, clean, step)
    for row in range(5):
        alone = schedule.transition(x[row : row + 1], clean[row : row + 1], step[row : row + 1])
        assert torch.equal(mean[row : row + 1], alone[0])
        assert torch.equal(std[row : row + 1], alone[1])
    assert std[2] == 0  # the last step
    torch.testing.assert_close(mean[2], clean[2])
    assert schedule.level(step)[1] == 1


def test_a_rows_draws_do_not_depend_on_its_neighbours(rows):
    x, clean, _ = (row.float() for row in rows)
    schedule = make_schedule(Denoising(steps=4))

    def draw(index):
        mean, std = schedule.transition(x[index], clean[index], torch.ones(len(index), dtype=torch.int64))
        streams = row_streams(0, ("steps",), 5)
        return mean + wide(std) * row_noise([streams[row] for row in index], x.shape[1:])

    every = draw([0, 1, 2, 3, 4])
    assert torch.equal(draw([3]), every[3:4])
    assert torch.equal(draw([4, 1]), every[[4, 1]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Denoising(noise="flow"),
        lambda: Denoising(steps=0),
        lambda: Denoising(noise="cps", eta=1.5),
        lambda: Denoising(eta=-1),
        lambda: RatioRule(reduce="max"),
        lambda: RatioRule(clip=0),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(SettingError, match=r"denoising|ratio"):
        make()


def test_a_range_belongs_to_its_reduction():
    """Whoever changes the reduction alone gets its own range; the other one's is refused."""
    assert (RatioRule().range, RatioRule("sum").range, RatioRule("sum", 0.1).range) == (1e-4, 0.2, 0.1)
    with pytest.raises(SettingError, match=r"ratio\.clip=0\.0001 is a range of means"):
        RatioRule("sum", 1e-4)
