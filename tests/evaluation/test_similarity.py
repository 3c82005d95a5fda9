"""Unit under test: SSIM, against closed forms and a direct, slow reading of the paper."""

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.evaluation.world_model.ssim import C1, C2, gaussian_window, ssim


def picture(seed, height=17, width=14):
    return numpy_stream(seed, "picture").integers(0, 256, (height, width, 3)).astype(np.uint8)


def slow_ssim(a, b):
    """Equations 5 to 13 of the paper, window by window."""
    window = np.outer(gaussian_window(), gaussian_window())
    values = []
    for colour in range(3):
        for top in range(a.shape[0] - 10):
            for left in range(a.shape[1] - 10):
                x, y = (p[top : top + 11, left : left + 11, colour].astype(float) for p in (a, b))
                mean_x, mean_y = (window * x).sum(), (window * y).sum()
                var_x, var_y = (window * (x - mean_x) ** 2).sum(), (window * (y - mean_y) ** 2).sum()
                covariance = (window * (x - mean_x) * (y - mean_y)).sum()
                luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
                values.append(luminance * (2 * covariance + C2) / (var_x + var_y + C2))
    return np.mean(values)


def test_constants_are_the_papers():
    assert pytest.approx(6.5025) == C1
    assert pytest.approx(58.5225) == C2
    window = gaussian_window()
    assert window.sum() == pytest.approx(1)
    assert window[5] / window[4] == pytest.approx(np.exp(1 / (2 * 1.5**2)))
    np.testing.assert_array_equal(window, window[::-1])


def test_identical_images_score_one_and_others_less():
    a, b = picture(0), picture(1)
    assert ssim(a, a) == pytest.approx(1, abs=1e-12)
    assert ssim(a, b) < 0.5
    assert ssim(a, 255 - a) < 0


@pytest.mark.parametrize(("grey_a", "grey_b"), [(0, 255), (100, 120), (0, 0)])
def test_flat_images_in_closed_form(grey_a, grey_b):
    a, b = (np.full((12, 12, 3), grey, np.uint8) for grey in (grey_a, grey_b))
    expected = (2 * grey_a * grey_b + C1) / (grey_a**2 + grey_b**2 + C1)
    assert ssim(a, b) == pytest.approx(expected, abs=1e-9)


def test_symmetric_and_as_the_paper_says_window_by_window():
    a = picture(2)
    b = np.clip(a + numpy_stream(3).normal(0, 30, a.shape), 0, 255).astype(np.uint8)
    assert ssim(a, b) == pytest.approx(ssim(b, a), abs=1e-12)
    assert ssim(a, b) == pytest.approx(slow_ssim(a, b), abs=1e-9)


def test_images_of_a_stack_are_taken_one_by_one():
    a, b = (np.stack([picture(seed + k) for k in range(6)]).reshape(2, 3, 17, 14, 3) for seed in (10, 20))
    together = ssim(a, b)
    assert together.shape == (2, 3)
    assert together[1, 2] == pytest.approx(ssim(a[1, 2], b[1, 2]), abs=1e-12)


def test_other_shapes_are_refused():
    with pytest.raises(SettingError, match="11 pixels"):
        ssim(picture(0, 10, 20), picture(1, 10, 20))
    with pytest.raises(SettingError, match="one size"):
        ssim(picture(0, 12, 12), picture(1, 12, 13))
