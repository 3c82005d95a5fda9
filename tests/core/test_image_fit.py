"""Unit under test: ``worldrl.core.image_fit``: closed forms of stretch, crop and letterbox."""

import numpy as np
import pytest

from worldrl.core.image_fit import WAYS, Fit, fit_image, keeps_aspect

SIZES = [(8, 16), (16, 8), (12, 12), (9, 16), (5, 7), (480, 640), (3, 64)]


def grid(rows, columns):
    """An image whose channels are the row, the column and a constant."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([y % 256, x % 256, np.full_like(y, 200)], axis=-1).astype(np.uint8)


def test_halving_takes_the_mean_of_two_by_two_pixels_in_every_way():
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    mean = image.reshape(4, 2, 6, 2, 3).astype(float).mean(axis=(1, 3))
    for fit in map(Fit, WAYS):
        np.testing.assert_allclose(fit_image(image, (4, 6), fit), mean, atol=0.51)


def test_stretch_covers_the_whole_image_and_changes_its_aspect():
    made = fit_image(grid(8, 16), (8, 8), Fit.stretch)
    np.testing.assert_array_equal(made[:, :, 0], np.mgrid[:8, :8][0])
    np.testing.assert_allclose(made[:, :, 1], np.mgrid[:8, :8][1] * 2 + 0.5, atol=0.51)


def test_crop_is_the_middle_of_the_image():
    image = grid(8, 16)
    np.testing.assert_array_equal(fit_image(image, (8, 8), Fit.crop), image[:, 4:12])
    np.testing.assert_array_equal(
        fit_image(image.transpose(1, 0, 2), (8, 8), Fit.crop), image[:, 4:12].transpose(1, 0, 2)
    )
    odd = grid(4, 7)
    np.testing.assert_array_equal(fit_image(odd, (4, 4), Fit.crop), odd[:, 1:5])  # one column more is lost at the right


def test_letterbox_keeps_the_image_between_black_bars():
    made = fit_image(grid(8, 16), (16, 16), Fit.letterbox)
    np.testing.assert_array_equal(made[4:12], grid(8, 16))
    assert not made[:4].any()
    assert not made[12:].any()
    small = fit_image(np.full((8, 16, 3), 200, np.uint8), (9, 8), Fit.letterbox)  # the image has 4 rows of 9
    assert (small[2:6] == 200).all()
    assert not small[:2].any()
    assert not small[6:].any()


@pytest.mark.parametrize("size", [(8, 8), (16, 24), (7, 5)])
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("fit", [Fit(way) for way in WAYS])
def test_a_constant_image_stays_constant_but_for_the_bars(shape, size, fit):
    made = fit_image(np.full((*shape, 3), 90, np.uint8), size, fit)
    assert made.shape == (*size, 3)
    assert made.dtype == np.uint8
    shown = (made == 90).all(axis=-1)
    if fit is not Fit.letterbox:
        assert shown.all()
        return
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    assert not made[~shown].any()
    assert shown.sum() == len(rows) * len(columns)
    assert len(rows) == size[0] or len(columns) == size[1]
    for kept, whole in ((rows, size[0]), (columns, size[1])):
        assert 0 <= (whole - 1 - kept[-1]) - kept[0] <= 1  # centred
    assert abs(len(rows) * shape[1] / shape[0] - len(columns)) <= shape[1] / shape[0] + 1  # aspect, to a pixel


def test_an_image_of_the_size_is_returned_as_it_is_and_others_are_refused():
    image = grid(8, 16)
    assert all(fit_image(image, (8, 16), fit) is image for fit in Fit)
    with pytest.raises(ValueError, match="is not one of"):
        fit_image(image, (8, 8), Fit.refuse)
    assert keeps_aspect((480, 640), (48, 64))
    assert not keeps_aspect((480, 640), (64, 64))
