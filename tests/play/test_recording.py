"""Unit under test: ``worldrl/play/recording.py``: what is saved of a drive, read back as datasets."""

import errno
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot import writer
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.play.recording import Recorder, imagined_episode
from worldrl.rollout.real.specs import has_spec

DOWN = np.array([0.1, 0, -0.8, 0, 0, 0, 1], np.float64)


@pytest.fixture
def driven(session):
    session.start("PickRedCube", 1)
    session.drive(DOWN)
    session.drive(-DOWN)
    return session


@pytest.fixture
def recorder(worlds, tmp_path):
    return Recorder(tmp_path, worlds, "abc")


def read(folder):
    return EpisodeDataset.open(folder)


def test_both_worlds_are_read_back_apart_and_named_so(driven, recorder, tmp_path):
    assert recorder.save(driven) == 8
    (real,), (imagined,) = read(tmp_path / "real"), read(tmp_path / "imagined")
    actions = np.concatenate([chunk.action for chunk in driven.chunks])
    assert (real.action == actions).all()
    assert (imagined.action == actions).all()
    shown = [driven.begun.observed, *(row for chunk in driven.chunks for row in chunk.observed)]
    assert (real.main_view == np.stack([row["image"] for row in shown])).all()
    assert (real.state == np.stack([row["state"] for row in shown])).all()
    one, two = (chunk.sheets for chunk in driven.chunks)
    start = driven.begun.record.reference
    expected = [start, start, one[0], one[0], one[1], one[1], two[0], two[0], two[1]]
    assert (imagined.main_view == np.stack(expected)).all()
    assert np.allclose(imagined.command, real.command, atol=1e-6)  # both integrate the same actions
    assert (imagined.meta["imagined"], imagined.meta["world_model"]) == (True, "abc")
    assert imagined.meta["zeros"] == ["contact", "state"]
    assert not imagined.state.any()
    assert not has_spec(imagined.meta)  # nobody takes it for an episode of the simulator
    assert (real.meta["task"], real.meta["index"], real.meta["seed"], real.meta["by"]) == (
        "PickRedCube",
        1,
        3,
        ["hand"] * 2,
    )
    assert "imagined" not in real.meta
    assert [read(tmp_path / name).header.suite for name in ("real", "imagined")] == ["worldrl", "imagined"]


def test_an_imagined_success_is_the_reward(driven):
    chunks = driven.chunks
    for chunk, probability in zip(chunks, ([0.1, 0.95], [0.95, 0.2]), strict=True):
        object.__setattr__(chunk.imagined, "success_prob", torch.tensor([probability]))
    assert driven.first_success() == 6  # the second frame in a row, at control step 6
    episode = imagined_episode(driven, {})
    assert episode.reward.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert (episode.terminated, episode.truncated) == (True, False)


def test_a_measured_state_is_saved_where_the_model_predicts_it(driven):
    first = np.arange(8, dtype=np.float32)
    driven._start = replace(driven.begun, record=replace(driven.begun.record, state=first))
    for number, chunk in enumerate(driven.chunks):
        object.__setattr__(chunk.imagined, "state", torch.full((1, 2, 8), 10.0 + number))
    episode = imagined_episode(driven, {})
    assert episode.meta["zeros"] == ["contact"]
    assert (episode.state[:2] == first).all()
    assert episode.state[2:, 0].tolist() == [10, 10, 10, 10, 11, 11, 11]


def test_a_save_is_repeated_without_a_copy_and_drives_add_up(driven, recorder, tmp_path, make_session):
    recorder.save(driven)
    recorder.save(driven)
    assert len(read(tmp_path / "real")) == len(read(tmp_path / "imagined")) == 1
    driven.undo(1)
    recorder.save(driven)
    assert [len(episode) for episode in read(tmp_path / "real")] == [8, 4]
    with pytest.raises(SettingError, match="nothing was driven yet"):
        recorder.save(make_session())


def test_a_full_disk_is_one_error_and_the_drive_can_be_saved_later(driven, recorder, tmp_path, monkeypatch):
    write, fails = writer.write_durably, iter([False, True])  # the second world's file

    def full(path, content):
        if "data" in path.parts and next(fails):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "write_durably", full)
        with pytest.raises(ArtefactError, match="No space left"):
            recorder.save(driven)
    assert len(driven.chunks) == 2
    recorder.save(driven)
    assert len(read(tmp_path / "real")) == len(read(tmp_path / "imagined")) == 1
