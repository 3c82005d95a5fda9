"""Unit under test: the Fréchet video distance, against closed forms of Gaussians."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap, jackknife
from worldrl.evaluation.world_model.fvd import LEAST_VIDEOS, Fvd, check_videos, frechet_distance, fvd_report


class Means(nn.Module):
    """Stands in for I3D: a clip's mean colours of its two halves, and its corners."""

    def forward(self, clips):
        assert clips.shape[1:] == (3, 16, 224, 224)
        assert clips.abs().max() < 1 + 1e-5
        corner = clips[:, :, 0, :112, :112].mean(dim=(2, 3))
        return torch.cat([clips[:, :, :8].mean(dim=(2, 3, 4)), clips[:, :, 8:].mean(dim=(2, 3, 4)), corner], dim=1)


def normal(seed, count, width):
    draws = numpy_stream(seed, "fvd")
    return draws.normal(size=(count, width)) @ draws.normal(size=(width, width))


def exactly(values, covariance, mean):
    """Make a set whose sample mean and covariance are those given, to rounding."""
    values = values - values.mean(axis=0)
    white = values @ np.linalg.inv(np.linalg.cholesky(np.cov(values, rowvar=False))).T
    return white @ np.linalg.cholesky(covariance).T + mean


def test_a_set_is_at_distance_zero_from_itself_singular_or_not():
    for count in (50, 6):  # of 8 features: full rank, and singular
        x = normal(0, count, 8)
        assert abs(frechet_distance(x, x)) < 1e-9 * np.trace(np.cov(x, rowvar=False))


def test_a_shift_is_worth_its_square_and_a_scale_its_deviations():
    x, shift = normal(1, 40, 5), np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    assert frechet_distance(x, x + shift) == pytest.approx(shift @ shift, rel=1e-9)
    # Scaled by 3 about the mean: tr Σ + 9 tr Σ - 2 · 3 tr Σ.
    scaled = x.mean(axis=0) + 3 * (x - x.mean(axis=0))
    assert frechet_distance(x, scaled) == pytest.approx(4 * np.trace(np.cov(x, rowvar=False)), rel=1e-9)


def test_two_gaussians_whose_covariances_commute():
    """Diagonal covariances: each feature adds (μ - ν)² + (σ - τ)²."""
    sigma, tau, mu, nu = np.array([1.0, 2.0, 0.5]), np.array([3.0, 0.1, 0.5]), np.arange(3.0), np.array([1.0, 1, -1])
    a = exactly(normal(2, 30, 3), np.diag(sigma**2), mu)
    b = exactly(normal(3, 50, 3), np.diag(tau**2), nu)
    assert frechet_distance(a, b) == pytest.approx(((mu - nu) ** 2 + (sigma - tau) ** 2).sum(), rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(frechet_distance(a, b), rel=1e-12)


def test_agrees_with_the_square_root_of_the_product():
    a, b = normal(4, 60, 12), normal(5, 45, 12) + 0.3
    sigma, gamma = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(sigma @ gamma).real
    difference = a.mean(axis=0) - b.mean(axis=0)
    expected = difference @ difference + np.trace(sigma) + np.trace(gamma) - 2 * np.trace(root)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(a.astype(np.float32), b.astype(np.float32)) == pytest.approx(expected, rel=1e-4)


def test_features_that_hardly_vary_do_not_break_it():
    """Ten orders of magnitude between the features, fewer rows than features: still 0 and still symmetric."""
    scale = np.logspace(0, -10, 20)
    a, b = normal(6, 9, 20) * scale, normal(7, 9, 20) * scale
    assert abs(frechet_distance(a, a)) < 1e-9 * np.trace(np.cov(a, rowvar=False))
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)
    assert frechet_distance(a, b) > 0


def test_sets_that_cannot_be_compared_are_refused():
    with pytest.raises(SettingError, match="two rows"):
        frechet_distance(normal(0, 1, 4), normal(0, 5, 4))
    with pytest.raises(SettingError, match="one width"):
        frechet_distance(normal(0, 5, 4), normal(0, 5, 3))


def test_a_film_is_cut_into_clips_of_sixteen_frames():
    frames = np.zeros((40, 12, 12, 3), np.uint8)
    frames[8:16] = 255
    frames[16:32, :6, :6] = [51, 102, 204]
    found = Fvd(Means()).features(frames)
    assert found.shape == (2, 9)  # eight frames are left over
    assert found[0].tolist() == pytest.approx([-1] * 3 + [1] * 3 + [-1] * 3, abs=1e-5)
    # A quarter of the image, but for the rows and columns that bilinear enlarging blends, whose mean is as before.
    colour = np.array([51, 102, 204]) / 127.5 - 1
    assert found[1, :3].tolist() == pytest.approx(((3 * -1 + colour) / 4).tolist(), abs=1e-5)
    assert (np.abs(found[1, 6:] - colour) < 0.1 * (colour + 1)).all()
    many = np.tile(frames[:32], (5, 1, 1, 1))  # more clips than go through at once
    np.testing.assert_allclose(Fvd(Means()).features(many), np.tile(found, (5, 1)), atol=1e-6)


def test_too_few_clips_are_refused_with_the_number_that_is_needed():
    assert LEAST_VIDEOS == 401
    check_videos(201, 40)
    for episodes, frames in ((200, 40), (4000, 15)):
        with pytest.raises(SettingError, match=rf"needs 401 clips of 16 frames.* {episodes} episodes of {frames}"):
            check_videos(episodes, frames)


def test_the_report_counts_clips_and_pools_them_over_episodes():
    real = normal(8, 60, 6).astype(np.float32).reshape(20, 3, 6)
    imagined = real + np.float32(0.5)
    found = fvd_report(real, imagined)
    assert found["value"] == pytest.approx(6 * 0.25, rel=1e-4)
    assert (found["n"], found["videos"], found["clip_frames"], found["method"]) == (20, 60, 16, "jackknife")
    assert found["lo"] <= found["value"] <= found["hi"]


def test_distances_of_sets_need_the_jackknife():
    """Entries drawn twice are worth one: the bootstrap's distances are too large, and its interval often misses the value."""

    def distance(pair):
        real, imagined = pair[:, 0], pair[:, 1]
        return frechet_distance(real, imagined)

    draws, missed, errors, values = numpy_stream(6), [], [], []
    for _ in range(40):
        real = draws.normal(size=(40, 16))
        pair = np.stack([real, real + 0.5 * draws.normal(size=(40, 16)) + 0.2], axis=1)
        drawn = bootstrap(pair, distance, generator=draws, resamples=40)
        left_out = jackknife(pair, distance)
        missed.append(not drawn["lo"] <= drawn["value"] <= drawn["hi"])
        errors.append((left_out["hi"] - left_out["value"]) / 1.96)
        values.append(left_out["value"])
    assert np.mean(missed) > 0.3
    assert 0.7 < np.mean(errors) / np.std(values) < 1.6
