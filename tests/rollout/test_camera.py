"""Unit under test: the pinhole camera, alone and against images of the real simulator."""

import numpy as np
import pytest

from worldrl.core.rng import numpy_stream
from worldrl.rollout.camera import Camera, HandCamera, camera_now
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec

DOWN = Camera(np.array([0.0, 0.0, 2.0]), np.eye(3), half_width=0.5)


def test_straight_down_in_closed_form():
    assert DOWN.project(np.zeros(3)).tolist() == [0, 0, 0]
    assert DOWN.depth(np.zeros(3)) == 2
    assert DOWN.project(np.array([0.125, 0.25, 1.5])).tolist() == [0.5, -1, 1.5]  # to the right, at the upper edge
    assert DOWN.unproject(np.array([0.5, -1, 1.5])).tolist() == [0.125, 0.25, 1.5]


def test_unproject_undoes_project_from_any_place():
    draws = numpy_stream(0, "camera")
    rotation = np.linalg.qr(draws.normal(size=(3, 3)))[0]
    camera = Camera(draws.normal(size=3), rotation, 0.3)
    points = camera.position + draws.normal(size=(5, 4, 3)) - 4 * rotation[:, 2]
    np.testing.assert_allclose(camera.unproject(camera.project(points)), points, atol=1e-12)


def test_a_moving_cameras_sights_hold_depth_and_only_what_it_shows():
    draws = numpy_stream(2, "camera")
    fixed = [Camera(draws.normal(size=3), np.linalg.qr(draws.normal(size=(3, 3)))[0], 0.5) for _ in range(6)]
    hand = HandCamera.of(fixed)
    seen = [[one.position - 2 * one.rotation[:, 2], one.position + one.rotation[:, 2]] for one in fixed]
    sight = hand.project(np.stack(seen))
    np.testing.assert_allclose(sight[:, 0], np.tile([0, 0, 2], (6, 1)), atol=1e-12)
    assert np.isnan(sight[:, 1]).all()  # behind it
    beside = np.stack([[one.position - one.rotation[:, 2] + 0.6 * one.rotation[:, 0]] for one in fixed])
    assert np.isnan(hand.project(beside)).all()  # outside the image
    points = np.stack([one.position + draws.normal(size=(40, 3)) - 4 * one.rotation[:, 2] for one in fixed])
    sight = hand.project(points)
    shown = np.isfinite(sight[..., 0])
    assert shown.any()
    assert not shown.all()
    np.testing.assert_allclose(hand.unproject(sight)[shown], points[shown], atol=1e-12)
    some = hand.at(np.array([4, 1]))
    np.testing.assert_array_equal(some.unproject(sight[[4, 1]]), hand.unproject(sight)[[4, 1]])
    assert DOWN.at(slice(3)) is DOWN


def test_across_is_what_the_image_shows():
    draws = numpy_stream(1, "camera")
    points, error = draws.normal(size=(2, 20, 3)) * 0.1
    across = DOWN.across(error, points)
    ray = points - DOWN.position
    np.testing.assert_allclose((across * ray).sum(axis=-1), 0, atol=1e-12)
    assert (np.linalg.norm(across, axis=-1) <= np.linalg.norm(error, axis=-1) + 1e-12).all()
    along = DOWN.across(0.1 * ray, points)
    np.testing.assert_allclose(along, 0, atol=1e-12)


@pytest.mark.parametrize("style", ["default", "shifted_camera"])
def test_the_scenes_camera_shows_the_red_cube_where_it_says(style):
    slot = EnvSlot(EnvOptions(image_size=64))
    try:
        for index in range(3):
            obs = slot.reset(EpisodeSpec("PlaceCubeInBin", index, 0, style=style))
            red = (obs["image"][..., 0] > 150) & (obs["image"][..., 1:].max(axis=-1) < 60)
            rows, columns = np.nonzero(red)
            place, camera = obs["privileged"]["red_cube"][:3], camera_now(slot.env)
            u, v, height = camera.project(place)
            assert [(columns.mean() + 0.5) / 32 - 1, (rows.mean() + 0.5) / 32 - 1] == pytest.approx([u, v], abs=0.05)
            assert 1 < camera.depth(place) < 2
            assert height == place[2]
    finally:
        slot.close()
