"""Unit under test: images of scenes drawn at random, in the real simulator."""

import numpy as np
import pytest

from worldrl.rollout.real.scenes import scattered_views

COLOURS = {"red_cube": 0, "green_cylinder": 1}


@pytest.fixture(scope="module")
def views():
    return list(scattered_views(["PickRedCube", "CloseDrawer"], 60, image_size=64, seed=3))


def test_points_are_where_the_images_show_them(views):
    picks = views[0]
    assert picks.names == ("gripper", "red_cube", "green_cylinder", "yellow_brick")
    sight = picks.camera.project(picks.point)
    for name, channel in COLOURS.items():
        own = picks.names.index(name)
        errors = []
        for frame, (u, v, _) in zip(picks.frame.astype(int), sight[:, own], strict=True):
            shown = frame[..., channel] > np.delete(frame, channel, axis=-1).max(axis=-1) + 50
            rows, columns = np.nonzero(shown)
            if len(rows) > 30:  # not behind the hand
                errors.append(((columns.mean() + 0.5) / 32 - 1 - u, (rows.mean() + 0.5) / 32 - 1 - v))
        assert len(errors) > 25
        assert np.abs(np.median(errors, axis=0)).max() < 0.03  # a pixel


def test_no_scene_is_another_and_the_seed_tells_all(views):
    assert len({frame.tobytes() for frame in views[0].frame}) == 60
    again = next(scattered_views(["PickRedCube"], 5, image_size=64, seed=3))
    np.testing.assert_array_equal(again.frame, views[0].frame[:5])
    np.testing.assert_array_equal(again.point, views[0].point[:5])
    other = next(scattered_views(["PickRedCube"], 5, image_size=64, seed=4))
    assert not np.array_equal(other.point, again.point)


def test_the_drawer_is_shown_at_all_openings(views):
    drawer = views[1].point[:, views[1].names.index("drawer")]
    assert views[1].names == ("gripper", "drawer")
    assert np.ptp(drawer[:, 0]) > 0.08


def test_the_look_moves_the_camera_too():
    plain, moved = (
        next(scattered_views(["PickRedCube"], 1, image_size=64, seed=3, style=style))
        for style in ("default", "shifted_camera")
    )
    np.testing.assert_array_equal(plain.point, moved.point)
    np.testing.assert_allclose(moved.camera.position - plain.camera.position, (0, 0.03, 0.02), atol=1e-9)
    assert not np.array_equal(plain.frame, moved.frame)
