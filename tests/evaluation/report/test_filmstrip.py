import base64
import re

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.report.filmstrip import GAP, decode_png, draw_filmstrip, encode_png, row_image, scale_for
from worldrl.evaluation.report.page import render


def random_frames(steps, size=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (steps, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize(("width", "scale"), [(16, 3), (64, 3), (65, 2), (128, 2), (256, 1)])
def test_small_frames_are_enlarged(width, scale):
    assert scale_for(width) == scale


def test_a_row_shows_every_pixel_enlarged_and_in_its_place():
    frames = random_frames(3)
    image = row_image(frames, 4)
    cell = (16 + GAP) * 3
    assert image.shape == (48, 4 * cell, 4)
    for t in range(3):
        shown = image[:, t * cell : t * cell + 48]
        assert np.array_equal(shown[::3, ::3, :3], frames[t])
        assert np.array_equal(shown, shown[::3, ::3].repeat(3, 0).repeat(3, 1))
        assert (shown[..., 3] == 255).all()
        assert (image[:, t * cell + 48 : (t + 1) * cell, 3] == 0).all()
    assert (image[:, 3 * cell :, 3] == 0).all()


def test_png_keeps_every_pixel_and_its_colour_order():
    image = random_frames(1)[0]
    image[0, 0] = (255, 0, 0)
    assert np.array_equal(decode_png(encode_png(image), "x"), image)
    assert encode_png(image) == encode_png(image)


def test_the_page_shows_the_frames_in_their_own_colours(data):
    sources = re.findall(r'src="data:image/png;base64,([^"]+)"', render(data))
    expected = [(strip, frames) for strip in data.filmstrips for frames in strip.rows.values()]
    assert len(sources) == len(expected)
    for source, (strip, frames) in zip(sources, expected, strict=True):
        image = decode_png(base64.b64decode(source), "page")
        assert image.shape == (192, len(strip.labels) * (64 + GAP) * 3, 3)
        assert np.array_equal(image[::3, : 64 * 3 : 3], frames[0])


@pytest.mark.parametrize("damaged", [b"", b"not a png", encode_png(np.zeros((8, 8, 3), np.uint8))[:30]])
def test_a_damaged_png_is_an_error_that_names_it(damaged):
    with pytest.raises(ArtefactError, match="strip-7"):
        decode_png(damaged, "strip-7")


def test_the_drawn_strip_holds_real_above_imagined_aligned_in_time(data):
    strip = data.filmstrips[1]
    image = draw_filmstrip(strip)
    cell = (64 + GAP) * 3
    place = {}
    for name, frames in strip.rows.items():
        block = frames[2].repeat(3, 0).repeat(3, 1)
        tops = [
            y
            for y in range(image.shape[0] - 192)
            if np.array_equal(image[y : y + 192, 8 + 2 * cell : 8 + 2 * cell + 192], block)
        ]
        assert len(tops) == 1, name
        place[name] = tops[0]
    assert place["real"] + 192 <= place["imagined"]
    assert (image[place["imagined"] : place["imagined"] + 192, 8 + 6 * cell : 8 + 8 * cell] == 255).all()
