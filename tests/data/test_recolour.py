"""Recolouring changes the look, and nothing that tells what happens."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.data.windows.recolour import (
    Recolouring,
    cluster_colours,
    from_lab,
    light_field,
    recolour,
    recolour_episode,
    segment_weights,
    smooth_noise,
    to_lab,
)

STILL = Recolouring(colour=0, light=0, texture=0)
RED = (220, 30, 30)


def clip(frames=3, size=24):
    """A saturated square that moves over a grey table with a darker stripe."""
    table = np.full((frames, size, size, 3), 120, np.uint8)
    table[:, 16:] = 60
    for t in range(frames):
        table[t, 4:12, 2 + 4 * t : 10 + 4 * t] = RED
    return table


def edges(frames):
    return np.abs(np.diff(frames.astype(float), axis=-2)).max(axis=-1)


def test_without_any_change_the_image_stays():
    frames = numpy_stream(0, "picture").integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    assert np.abs(recolour(frames, STILL, generator=numpy_stream(0)).astype(int) - frames).max() <= 1
    assert np.abs(from_lab(to_lab(frames)).astype(int) - frames).max() <= 1


def test_lightness_of_the_greys_is_the_published_one():
    grey = np.array([[[0, 0, 0], [119, 119, 119], [255, 255, 255]]], np.uint8)
    lab = to_lab(grey)[0]
    np.testing.assert_allclose(lab[:, 0], [0, 50, 100], atol=0.2)  # CIE 1976: L* 50 is sRGB grey 119
    np.testing.assert_allclose(lab[:, 1:], 0, atol=0.05)


def test_the_look_is_the_same_in_every_frame_and_another_one_for_another_draw():
    frames = clip()
    config = Recolouring(texture=0)
    changed = recolour(frames, config, generator=numpy_stream(0))
    np.testing.assert_array_equal(changed, recolour(frames, config, generator=numpy_stream(0)))
    assert not np.array_equal(changed, recolour(frames, config, generator=numpy_stream(1)))
    np.testing.assert_array_equal(changed[0, 14:], changed[2, 14:])  # where nothing moved, nothing flickers
    assert np.abs(changed.astype(int) - frames).mean() > 3


def test_edges_stay_where_they_were_and_a_saturated_square_keeps_its_colour():
    frames = clip()
    for seed in range(4):
        changed = recolour(frames, Recolouring(light=0), generator=numpy_stream(seed))
        assert set(np.flatnonzero(edges(changed)[0, 6] > 30)) == set(np.flatnonzero(edges(frames)[0, 6] > 30))
        assert np.abs(changed[1, 6:10, 8:12].astype(int) - RED).max() <= 2


def test_pale_segments_change_and_saturated_ones_when_asked():
    frames = clip()
    for config, kept in ((Recolouring(light=0, texture=0), True), (Recolouring(light=0, keep_chroma=200), False)):
        changed = recolour(frames, config, generator=numpy_stream(5))
        assert (np.abs(changed[0, 6, 5].astype(int) - RED).max() <= 2) == kept
        assert np.abs(changed[0, 20, 20].astype(int) - 60).max() > 2


def test_clusters_find_the_colours_that_are_there():
    centres = np.array([[20, 0, 0], [60, 40, 20], [80, -30, 10]], np.float32)
    draw = numpy_stream(0, "clusters")
    pixels = (centres[draw.integers(3, size=600)] + draw.normal(scale=0.5, size=(600, 3))).astype(np.float32)
    found = cluster_colours(pixels, 3, generator=numpy_stream(1))
    np.testing.assert_allclose(found[found[:, 0].argsort()], centres, atol=0.3)
    assert len(cluster_colours(np.zeros((9, 3), np.float32), 4, generator=numpy_stream(1))) == 1
    weight = segment_weights(pixels, found)
    np.testing.assert_allclose(weight.sum(axis=-1), 1, rtol=1e-5)
    assert weight.max(axis=-1).min() > 0.99


def test_texture_and_light_are_what_they_are_said_to_be():
    noise = smooth_noise((20, 30), numpy_stream(0))
    assert (noise.shape, abs(noise.mean()) < 1e-5) == ((20, 30), True)
    assert noise.std() == pytest.approx(1, rel=1e-4)
    field = light_field((20, 30), 0.2, numpy_stream(0))
    slopes = np.diff(field, axis=0)
    np.testing.assert_allclose(slopes, slopes[0, 0], atol=1e-5)
    assert np.array_equal(light_field((4, 4), 0.0, numpy_stream(0)), np.ones((4, 4)))


def test_an_episode_keeps_all_but_its_frames(push_episode):
    episode = push_episode(0, 6)
    changed = recolour_episode(episode, Recolouring(), generator=numpy_stream(0))
    assert changed.frames.shape == episode.frames.shape
    assert changed.frames.dtype == np.uint8
    assert not np.array_equal(changed.frames, episode.frames)
    same = replace(changed, frames=episode.frames)
    for name in ("state", "command", "action", "reward", "contact"):
        np.testing.assert_array_equal(getattr(same, name), getattr(episode, name))


@pytest.mark.parametrize("over", [{"segments": 0}, {"colour": -1.0}, {"light": -0.1}, {"texture": -1.0}])
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=next(iter(over))):
        Recolouring(**over)
