"""Unit under test: the position probe."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.evaluation.probe import (
    PositionProbe,
    ProbeFrames,
    ProbeSettings,
    distance_cm,
    fit_probe,
    new_probe,
    probe_loss,
    spread,
)

SMALL = ProbeSettings(steps=150, batch=32, width=16, blocks=1, keypoints=4, hidden=32, learning_rate=5e-3)
NAMES = ("gripper", "red_cube", "green_cylinder")


@pytest.fixture
def frames(push_runs):
    """Pixels taken as centimetres, so that errors look like a robot's."""
    runs = [replace(run, point=run.point / 100) for run in push_runs]
    return ProbeFrames.of(runs, every=2)


def test_points_that_a_scene_lacks_or_that_fell_are_nan(push_runs):
    run = push_runs[0]
    fallen = run.point.copy()
    fallen[5, 1, 2] = -0.3
    full = spread(replace(run, point=fallen), NAMES)
    assert full.shape == (41, 3, 3)
    np.testing.assert_array_equal(full[:, 0], fallen[:, 0])
    assert np.isnan(full[:, 2]).all()
    assert np.isnan(full[5, 1]).all()
    assert np.isfinite(np.delete(full[:, 1], 5, axis=0)).all()


def test_frames_keep_their_task_and_points(push_runs):
    frames = ProbeFrames.of(push_runs, every=8)
    assert frames.tasks == ("PickGreenCylinder", "PickRedCube")
    assert frames.names == NAMES
    assert frames.frame.shape == (8 * 6, 16, 16, 3)
    assert frames.task.tolist() == ([1] * 6 + [0] * 6) * 4
    np.testing.assert_array_equal(frames.frame[7], push_runs[1].episode.frames[8, 0])
    np.testing.assert_array_equal(frames.point[7], spread(push_runs[1], NAMES)[8])


def test_distance_in_centimetres():
    read, true = np.zeros((2, 2, 3), np.float32), np.zeros((2, 2, 3), np.float32)
    read[0, 0] = (0.03, 0.04, 0)
    true[1, 1] = np.nan
    found = distance_cm(read, true)
    assert found[0] == pytest.approx([5, 0])
    assert found[1, 0] == 0
    assert np.isnan(found[1, 1])


def test_loss_by_hand_and_blind_to_what_does_not_exist():
    read = torch.zeros(1, 2, 3, requires_grad=True)
    true = torch.tensor([[[0.03, 0.0, 0.005], [float("nan")] * 3]])
    loss = probe_loss(read, true)  # 3 cm: 3 - 0.5; 0.5 cm: 0.5 * 0.25
    assert loss.item() == pytest.approx((2.5 + 0.125) / 3)
    torch.autograd.backward(loss)
    assert read.grad is not None
    assert torch.isfinite(read.grad).all()
    assert not read.grad[0, 1].any()


def test_an_untrained_probe_answers_near_the_mean(frames):
    probe = new_probe(SMALL, frames, seed=0)
    read = probe.read(frames.frame[:5], "PickRedCube")
    mean, deviation = np.nanmean(frames.point, axis=0), np.nanstd(frames.point, axis=0)
    assert (np.abs(read - mean) < np.maximum(3 * deviation, 0.01)).all()
    again = new_probe(SMALL, frames, seed=0).read(frames.frame[:5], "PickRedCube")
    np.testing.assert_array_equal(read, again)


def test_it_learns_where_the_square_is_and_survives_a_save(frames, tmp_path):
    probe = new_probe(SMALL, frames, seed=0)
    fit_probe(probe, frames, seed=0, folder=None, log=None)
    error = {
        task: distance_cm(probe.read(frames.frame[own], task), frames.point[own])
        for number, task in enumerate(frames.tasks)
        for own in [frames.task == number]
    }
    assert all(np.nanmedian(distance) < 0.5 for distance in error.values())  # half a pixel; they spread over 12
    probe.save(tmp_path / "probe")
    again = PositionProbe.load(tmp_path / "probe", "cpu")
    assert again.names == NAMES
    read = probe.read(frames.frame[:9], "PickRedCube")
    np.testing.assert_array_equal(again.read(frames.frame[:9], "PickRedCube"), read)
    np.testing.assert_allclose(probe.read(frames.frame[:9], "PickRedCube", batch=4), read, atol=1e-6)
    with pytest.raises(ArtefactError):
        PositionProbe.load(tmp_path / "none", "cpu")


def test_a_task_it_does_not_know_is_refused(frames):
    with pytest.raises(SettingError, match="not on OpenDrawer"):
        new_probe(SMALL, frames, seed=0).read(frames.frame[:1], "OpenDrawer")


@pytest.mark.parametrize("over", [{"episodes": 0}, {"every": 0}, {"steps": -1}, {"jitter": -0.1}])
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=f"probe.*{next(iter(over))}"):
        ProbeSettings(**over)
