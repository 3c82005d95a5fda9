"""Unit under test: the position probe."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.rng import stream
from worldrl.evaluation.world_model.probe import PositionProbe, ProbeSettings, fit_probe, new_probe, probe_loss
from worldrl.evaluation.world_model.probe_frames import ProbeFrames, position_errors, shifted, softened, spread
from worldrl.rollout.real.scenes import Views

SMALL = ProbeSettings(steps=150, batch=32, width=16, blocks=1, keypoints=4, hidden=32, learning_rate=5e-3)
NAMES = ("gripper", "red_cube", "green_cylinder")


@pytest.fixture
def frames(push_runs):
    return ProbeFrames.of([Views.of(run, every=2) for run in push_runs])


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
    frames = ProbeFrames.of([Views.of(run, every=8) for run in push_runs])
    assert frames.tasks == ("PickGreenCylinder", "PickRedCube")
    assert frames.names == NAMES
    assert frames.frame.shape == (8 * 6, 16, 16, 3)
    assert frames.task.tolist() == ([1] * 6 + [0] * 6) * 4
    np.testing.assert_array_equal(frames.frame[7], push_runs[1].episode.frames[8, 0])
    np.testing.assert_allclose(
        frames.sight[7], push_runs[1].cameras[IMAGE].project(spread(push_runs[1], NAMES)[8]), atol=1e-6
    )
    assert frames.half_width == pytest.approx(0.08)  # two metres deep, 16 cm wide


def test_errors_in_centimetres_in_space_and_across_the_line_of_sight(push_runs):
    run = push_runs[0]
    true = np.zeros((2, 2, 3), np.float32)  # straight below the camera
    true[1, 1] = np.nan
    read = np.zeros((2, 2, 3), np.float32)
    read[0, 0] = (0.03 / (2.04 * 0.04), 0, -0.04)  # 3 cm to the right, 4 cm too low
    whole, across = position_errors(read, true, run)
    assert whole[0] == pytest.approx([5, 0], abs=1e-5)
    assert across[0] == pytest.approx([3, 0], abs=1e-5)
    assert whole[1, 0] == 0
    assert np.isnan([whole[1, 1], across[1, 1]]).all()


def test_loss_by_hand_and_blind_to_what_does_not_exist():
    read = torch.zeros(1, 2, 3, requires_grad=True)
    true = torch.tensor([[[0.3, 0.0, 0.005], [float("nan")] * 3]])
    loss = probe_loss(read, true, half_width=0.1)  # 3 cm across and 0.5 cm high, less half of 0.2 cm
    assert loss.item() == pytest.approx((2.9 + 0.4) / 3)
    near = torch.tensor([[[0.01, 0.0, 0.0], [float("nan")] * 3]])
    assert probe_loss(read, near, half_width=0.1).item() == pytest.approx(0.1**2 / (2 * 0.2) / 3)
    torch.autograd.backward(loss)
    assert read.grad is not None
    assert torch.isfinite(read.grad).all()
    assert not read.grad[0, 1].any()


def test_a_shift_moves_the_image_and_its_sights_alike(frames, square_reader):
    inner = np.abs(frames.sight[:, 0, :2]).max(axis=1) < 0.4  # those stay whole
    frame, sight = torch.from_numpy(frames.frame[inner]), torch.from_numpy(frames.sight[inner])
    moved, sights = shifted(frame, sight, 0.15, stream(0))
    read = square_reader.read(moved.numpy(), "PickRedCube")
    np.testing.assert_allclose(read[:, 0], sights[:, 0], atol=1e-6)
    assert ((sights - sight)[:, 0, :2] * 8).round().unique().tolist() == [-2, -1, 0, 1, 2]
    torch.testing.assert_close(sights[:, 0, 2], sight[:, 0, 2])
    still, same = shifted(frame, sight, 0, stream(0))
    assert torch.equal(still, frame)
    assert torch.equal(same[:, 0], sight[:, 0])


def test_softening_mixes_in_the_mean_of_the_neighbours():
    frame = torch.zeros(40, 6, 6, 3, dtype=torch.uint8)
    frame[:, 2, 3] = 180
    soft = softened(frame, 1.0, stream(0)).int()
    share = (180 - soft[:, 2, 3, 0]) / 160  # at 1 the pixel is the mean of nine, 20
    torch.testing.assert_close(soft[:, 1, 2, 0].float(), 20 * share, atol=0.6, rtol=0)
    assert 0 < share.min() < 0.2 < 0.8 < share.max() < 1
    assert not soft[:, 0].any()
    assert not soft[:, 4:].any()
    assert torch.equal(softened(frame, 0.0, stream(0)), frame)
    plain = torch.full((3, 6, 6, 3), 77, dtype=torch.uint8)
    assert torch.equal(softened(plain, 1.0, stream(0)), plain)  # no edge darkens


def test_an_untrained_probe_answers_the_mean_height_somewhere_in_the_image(frames):
    probe = new_probe(SMALL, frames, seed=0)
    read = probe.read(frames.frame[:5], "PickRedCube")
    np.testing.assert_allclose(read[..., 2], np.nanmean(frames.sight, axis=0)[None, :, 2].repeat(5, 0), atol=1e-6)
    assert (np.abs(read[..., :2]) < 2).all()
    again = new_probe(SMALL, frames, seed=0).read(frames.frame[:5], "PickRedCube")
    np.testing.assert_array_equal(read, again)


def test_it_learns_where_the_square_is_and_survives_a_save(push_runs, frames, tmp_path):
    probe = new_probe(SMALL, frames, seed=0)
    fit_probe(probe, frames, seed=0, folder=None, log=None)
    for run in push_runs[:2]:
        read = probe.read(run.episode.frames[:, 0], run.episode.task)
        whole, across = position_errors(read, spread(run, NAMES), run)
        assert np.nanmedian(whole) < 1  # one pixel; the square moves over 12
        assert (across <= whole + 1e-6)[np.isfinite(whole)].all()
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


@pytest.mark.parametrize(
    "over",
    [{"episodes": 0}, {"every": 0}, {"steps": -1}, {"jitter": -0.1}, {"shift": 0.5}, {"blur": 1.1}, {"scattered": -1}],
)
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=f"probe.*{next(iter(over))}"):
        ProbeSettings(**over)
