"""Inverse dynamics: what is read, how it is learned, and whether its deviations and its folder can be trusted."""

import json
import math

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.artefact import MANIFEST, parent, write_artefact
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.config import IdmConfig, IdmTraining
from worldrl.rewards.motion.basis import measure_basis
from worldrl.rewards.motion.calibration import Readings, by_unit, calibration, over_episodes, read_episodes
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics, read_once
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.readout import Column, choose_columns, column_values, recorded_names
from worldrl.rewards.motion.training import IdmFrames, beta_nll, fit_idm, new_idm, scale_deviations

SMALL = {"width": 16, "blocks": 1, "keypoints": 4, "value_width": 4, "hidden": 32}
PLACE = (Column("command", 0, "x"), Column("command", 1, "y"))


def data_of(episodes, columns=PLACE, *, stride=1, restore=None):
    return IdmFrames.of(episodes, columns, frame_stride=stride, camera="scene", restore=restore)


def make(window=1, columns=PLACE, stride=1, seed=0, **sizes):
    with initial_weights(seed, "idm"):
        return InverseDynamics(IdmConfig(window=window, **(SMALL | sizes)), columns, stride).eval()


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_chosen_by_vector_name_and_range(robot):
    names = recorded_names(robot)
    assert [c.label for c in choose_columns(["state.x", "command.gripper"], names)] == ["state.x", "command.gripper"]
    assert [c.index for c in choose_columns(["state.2:4"], names)] == [2, 3]
    assert [c.name for c in choose_columns(["action"], names)] == ["dx", "dy", "dz", "drx", "dry", "drz", "gripper"]
    assert [c.unit for c in choose_columns(["state"], names)] == 3 * ["m"] + 3 * ["rad"] + 2 * ["m"]
    assert [c.unit for c in choose_columns(["command.gripper", "action.dx"], names)] == ["", ""]


def test_other_robots_name_their_own_columns():
    names = ("left_joint1", "left_gripper", "right_joint1", "right_gripper")
    pair = JointEmbodiment(names, (-1.0,) * 4, (1.0,) * 4, (3.0,) * 4, 20.0)
    columns = choose_columns(["state"], recorded_names(pair))
    assert [c.label for c in columns] == [f"state.{name}" for name in names]
    assert [c.unit for c in columns] == ["rad", "", "rad", ""]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([], "must name"),
        (["stat"], "did you mean 'state'"),
        (["state.finger_lift"], "did you mean 'finger_left'"),
        (["state.x", "state"], r"state\.x is chosen twice"),
        (["state.5:3"], "must name"),
    ],
)
def test_columns_that_do_not_exist_are_refused(robot, target, message):
    with pytest.raises(SettingError, match=message):
        choose_columns(target, recorded_names(robot))


def test_an_action_lies_between_frames(push_episode):
    episode = push_episode(steps=6)
    values = column_values(episode, (Column("action", 0, "dx"),), 2)
    assert values.shape == (7, 1)
    assert values[:5, 0] == pytest.approx((episode.action[:-1, 0] + episode.action[1:, 0]) / 2)
    assert np.isnan(values[5:]).all()
    mixed = column_values(episode, (Column("action", 0, "dx"), PLACE[0]), 1)
    assert mixed[:, 1] == pytest.approx(episode.command[:, 0])
    assert np.isnan(column_values(episode, (Column("action", 0, "dx"),), 9)).all()


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "offsets"), [(1, (0,)), (2, (0, 1)), (3, (-1, 0, 1))])
def test_decode_is_forward_on_windows_that_repeat_the_ends(window, offsets):
    idm = make(window)
    idm.trust.copy_(torch.tensor([2.0, 3.0]))
    idm.mean.copy_(torch.tensor([1.0, -1.0]))
    idm.deviation.copy_(torch.tensor([0.5, 0.1]))
    frames = torch.randint(0, 256, (2, 5, 16, 16, 3), generator=stream(0, "frames"), dtype=torch.uint8)
    decoded = idm.decode(frames, batch=3)
    assert decoded.mean.shape == decoded.std.shape == (2, 5, 2)
    for t in range(5):
        seen = frames[:, [min(max(t + offset, 0), 4) for offset in offsets]]
        mean, log_std = idm(seen)
        torch.testing.assert_close(decoded.mean[:, t], idm.mean + idm.deviation * mean)
        torch.testing.assert_close(decoded.std[:, t], idm.trust * idm.deviation * log_std.exp())


def test_frames_of_another_layout_are_refused():
    with pytest.raises(SettingError, match=r"uint8 \[N, T, Y, X, 3\]"):
        make().decode(torch.zeros(5, 16, 16, 3, dtype=torch.uint8))
    with pytest.raises(SettingError, match="multiples of 8"):
        make().decode(torch.zeros(1, 5, 12, 16, 3, dtype=torch.uint8))
    with pytest.raises(SettingError, match=r"model\.window"):
        IdmConfig(window=4)


def test_a_folder_gives_back_the_same_model(tmp_path):
    idm = make(3, stride=2)
    idm.trust.fill_(1.5)
    q = torch.randn(3, 20, 2, generator=stream(0, "q"))
    idm.basis = measure_basis(q, 0 * q, 0.1, JointLimits.measured(list(q), 0.1))
    idm.save(tmp_path / "idm")
    again = InverseDynamics.load(tmp_path / "idm")
    assert json.loads((tmp_path / "idm" / MANIFEST).read_text())["kind"] == "idm"
    assert (again.columns, again.frame_stride, again.config) == (idm.columns, 2, idm.config)
    assert again.basis is not None
    assert again.basis.to_json() == idm.basis.to_json()
    frames = torch.randint(0, 256, (1, 4, 16, 16, 3), generator=stream(0, "frames"), dtype=torch.uint8)
    for name in ("mean", "std"):
        assert torch.equal(getattr(idm.decode(frames), name), getattr(again.decode(frames), name))
    write_artefact(tmp_path / "odd", kind="idm", config={"columns": []}, tensors={})
    with pytest.raises(ArtefactError, match="do not fit this version"):
        InverseDynamics.load(tmp_path / "odd")


def test_what_was_opened_twice_decodes_videos_once(tmp_path, monkeypatch):
    """A copy that was made from something else, too; other weights or another window are another reader."""
    calls, decode = [], InverseDynamics.decode
    monkeypatch.setattr(InverseDynamics, "decode", lambda idm, frames: calls.append(idm) or decode(idm, frames))
    idm = make(2)
    idm.save(tmp_path / "idm")
    idm.save(tmp_path / "copy", parents=[parent(tmp_path / "idm")])
    first, again, copy = (InverseDynamics.load(tmp_path / name) for name in ("idm", "idm", "copy"))
    frames = torch.randint(0, 256, (2, 4, 16, 16, 3), generator=stream(0, "frames"), dtype=torch.uint8)
    videos = ImaginedVideos(frames, torch.zeros(2, 3, 1), 0.1, ["a", "b"])
    assert read_once(first, videos) is read_once(again, videos) is read_once(copy, videos)
    assert calls == [first]
    copy.trust.fill_(2.0)
    others = [copy, make(2, seed=1), make(1)]
    for count, other in enumerate(others, start=2):
        assert torch.equal(read_once(other, videos), decode(other, frames).mean)
        assert len(calls) == count


# --- learning -------------------------------------------------------------------------------------------------------


def test_the_loss_is_gaussian_without_beta_and_squared_error_with_one():
    target = torch.randn(6, 3, generator=stream(0, "target"), dtype=torch.float64)
    mean = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    log_std = 0.3 * torch.randn(6, 3, generator=stream(1, "log std"), dtype=torch.float64)
    expected = torch.nn.functional.gaussian_nll_loss(mean, target, (2 * log_std).exp(), reduction="none")
    torch.testing.assert_close(beta_nll(mean, log_std, target, 0.0), expected)
    (gradient,) = torch.autograd.grad(beta_nll(mean, log_std, target, 1.0).sum(), mean)
    torch.testing.assert_close(gradient, mean - target)
    (half,) = torch.autograd.grad(beta_nll(mean, log_std, target, 0.5).sum(), mean)
    torch.testing.assert_close(half, (mean - target) / log_std.exp())


def test_windows_stay_in_their_episode_and_show_what_the_codec_gives_back(push_episode):
    episodes = [push_episode(n, 5) for n in range(2)]
    data = data_of(episodes, restore=lambda frames, first: 255 - frames // 2 - first // 2)
    rows, offsets = torch.tensor([0, 5, 6, 8]), (-2, 0, 2)
    plain = data.window(rows, offsets, None)
    assert torch.equal(plain, data.frame[torch.tensor([[0, 0, 2], [3, 5, 5], [6, 6, 8], [6, 8, 10]])])
    shown = data.window(rows, offsets, torch.tensor([True, False, True, False]))
    assert torch.equal(shown[[1, 3]], plain[[1, 3]])
    first = data.frame[torch.tensor([0, 6])][:, None]  # of each one's own episode
    assert torch.equal(shown[[0, 2]], 255 - plain[[0, 2]] // 2 - first // 2)


def test_it_learns_a_few_episodes_by_heart_and_knows_its_error(push_episode):
    """The square's place follows from the command, so the image tells it."""
    episodes = [push_episode(n, 12, close_at=None) for n in range(3)]
    data = data_of(episodes)
    idm = new_idm(IdmConfig(**SMALL), PLACE, data, frame_stride=1, seed=0)
    torch.testing.assert_close(idm.deviation, data.target.std(dim=0, correction=0))
    training = IdmTraining(steps=150, batch=16, learning_rate=1e-2, jitter=0.0)
    fit_idm(idm, data, training, seed=0, folder=None, log=None)
    readings = read_episodes(idm, episodes, camera="scene")
    errors = np.concatenate(readings.errors) / idm.deviation.numpy()
    assert np.median(errors) < 0.2  # of the spread; one pixel of sixteen is about 0.5
    scale_deviations(idm, torch.from_numpy(np.concatenate(readings.scores)))
    covered = np.concatenate(read_episodes(idm, episodes, camera="scene").scores) <= 1.6449
    assert covered.mean(axis=0) == pytest.approx([0.9, 0.9], abs=0.03)


def test_the_same_seed_learns_the_same_bits_and_a_constant_column_harms_nothing(push_episode):
    columns = (*PLACE, Column("state", 3, "rx"))  # never moves

    def train(seed):
        data = data_of([push_episode(n, 6) for n in range(2)], columns)
        idm = new_idm(IdmConfig(**SMALL), columns, data, frame_stride=1, seed=seed)
        fit_idm(idm, data, IdmTraining(steps=4, batch=4), seed=seed, folder=None, log=None)
        return torch.cat([value.flatten() for value in idm.state_dict().values()])

    first = train(0)
    assert torch.isfinite(first).all()
    assert torch.equal(first, train(0))
    assert not torch.equal(first, train(1))


def test_training_refuses_what_cannot_be(push_episode):
    with pytest.raises(SettingError, match="no episode has 99 actions"):
        data_of([push_episode()], (Column("action", 0, "dx"),), stride=99)
    with pytest.raises(ArtefactError, match="camera 'wrist'"):
        IdmFrames.of([push_episode()], PLACE, frame_stride=1, camera="wrist", restore=None)
    for over in ({"steps": 0}, {"beta": 2.0}, {"codec_share": -0.1}, {"jitter": -1.0}):
        with pytest.raises(SettingError, match=rf"training\.{next(iter(over))}"):
            IdmTraining(**over)


# --- calibration ----------------------------------------------------------------------------------------------------


def test_errors_and_coverage_by_hand():
    true = [np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]), np.array([[3.0, 5.0]])]
    mean = [t + np.array([0.1, -2.0]) for t in true]
    std = [np.full_like(t, [[0.1, 1.0]]) for t in true]
    std[1][0, 0] = 0.01
    readings = Readings((Column("state", 0, "x"), Column("state", 3, "rx")), true, mean, std)
    x, rx = calibration(readings, seed=0)
    assert (x["column"], x["unit"], rx["unit"]) == ("state.x", "m", "rad")
    assert x["median"]["value"] == pytest.approx(0.1)
    assert rx["p90"]["value"] == pytest.approx(2.0)
    assert x["guess"] == pytest.approx(1.0)  # of 0, 1, 2, 3 about 1.5
    assert x["coverage"]["0.9"]["value"] == pytest.approx(0.75)  # ten deviations off in one of four frames
    assert x["coverage"]["0.5"]["value"] == 0.0
    assert rx["coverage"]["0.95"]["value"] == 0.0
    assert x["median"]["n"] == 2
    assert by_unit(readings, seed=0)["rad"]["median"]["value"] == pytest.approx(2.0)
    still = [np.full((len(t), 1), 0.5) for t in true]  # what never moves is read without error, and does not count
    true, mean = ([np.hstack([a, b]) for a, b in zip(given, still, strict=True)] for given in (true, mean))
    readings = Readings((*readings.columns, Column("state", 4, "ry")), true, mean, mean)
    assert by_unit(readings, seed=0)["rad"]["median"]["value"] == pytest.approx(2.0)
    alone = Readings((Column("state", 4, "ry"),), still, still, still)
    assert by_unit(alone, seed=0) == {}


def test_quantiles_over_episodes_are_those_of_all_their_values():
    parts = [np.array([3.0, 1.0]), np.array([2.0]), np.array([9.0, 7.0, 8.0, 6.0])]
    for share, value in ((0.5, 6.0), (0.9, 9.0), (0.1, 1.0)):
        found = over_episodes(parts, share, seed=0, name="x")
        assert found["value"] == value
        assert 1.0 <= found["lo"] <= value <= found["hi"] <= 9.0
    assert over_episodes(parts[:1], 0.5, seed=0, name="x")["value"] == 1.0


def test_deviations_of_gaussian_errors_are_left_alone():
    idm = make()
    scores = torch.randn(20_000, 2, generator=stream(0, "scores")) * torch.tensor([1.0, 3.0])
    scale_deviations(idm, scores)
    assert idm.trust.tolist() == pytest.approx([1.0, 3.0], rel=0.03)
    assert math.isfinite(float(idm.trust.sum()))
