"""Unit under test: ``worldrl extend``, on episodes that the real simulator recorded and repeats."""

import os
from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.jobs.data import collect, extend
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.data.extend import ExtendSettings

STEPS = 90


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two expert episodes of each of two tasks, 16 pixels, shorter than the time limit."""
    folder = tmp_path_factory.mktemp("recorded")
    fsync, os.fsync = os.fsync, lambda _descriptor: None
    try:
        tasks = ["PickRedCube", "CloseDrawer"]
        collect.main(
            CollectSettings(run_dir=str(folder), tasks=tasks, expert_episodes=2, image_size=16, workers=0, hold_steps=2)
        )
    finally:
        os.fsync = fsync
    return folder / "dataset"


def extended(recorded, folder, **over):
    settings = ExtendSettings(**{"data": str(recorded), "run_dir": str(folder), "steps": STEPS, **over})
    return extend.main(settings), EpisodeDataset.open(folder / "dataset")


@pytest.fixture(scope="module")
def whole(recorded, tmp_path_factory):
    return extended(recorded, tmp_path_factory.mktemp("whole") / "run")


def test_episodes_begin_as_recorded_and_continue(recorded, whole):
    metrics, found = whole
    before = {(e.task, e.meta["index"]): e for e in EpisodeDataset.open(recorded)}
    assert metrics == {"episodes": 4, "frames": 4 * (STEPS + 1)}
    for episode in found:
        old = before.pop((episode.task, episode.meta["index"]))
        assert len(episode) == STEPS > len(old)
        assert episode.meta["recorded_steps"] == len(old)
        for name in ("frames", "state", "command"):
            np.testing.assert_array_equal(getattr(episode, name)[: len(old) + 1], getattr(old, name))
        np.testing.assert_array_equal(episode.action[: len(old)], old.action)
        assert np.abs(np.diff(episode.command[len(old) + 10 :], axis=0)).max() > 0  # it does not stand still
        assert episode.success
    assert not before


def test_a_run_interrupted_resumes_to_the_same_bits(recorded, whole, tmp_path, monkeypatch):
    true_runs, calls = extend.true_runs, []

    def stops(*args, **kwargs):
        for run in true_runs(*args, **kwargs):
            calls.append(run)
            if len(calls) == 3:
                raise KeyboardInterrupt
            yield run

    monkeypatch.setattr(extend, "true_runs", stops)
    with pytest.raises(KeyboardInterrupt):
        extended(recorded, tmp_path / "run")
    _, found = extended(recorded, tmp_path / "run")
    assert len(calls) == 5  # the one that was cut, again
    for a, b in zip(found, whole[1], strict=True):
        np.testing.assert_array_equal(a.frames, b.frames)
        assert a.meta == b.meta


def test_some_episodes_are_drawn_of_each_task(recorded, tmp_path):
    _, found = extended(recorded, tmp_path / "run", episodes=1, steps=60, continuation="hold")
    assert [e.task for e in found] == ["CloseDrawer", "PickRedCube"]


def test_a_recording_that_the_simulator_does_not_repeat_is_refused(recorded, tmp_path):
    data = EpisodeDataset.open(recorded)
    with LeRobotWriter(
        tmp_path / "other", fps=20, cameras=("scene",), image_size=(16, 16), embodiment=data.embodiment
    ) as writer:
        writer.add_episode(replace(data[0], state=data[0].state + 0.1))
    with pytest.raises(ArtefactError, match="did not repeat"):
        extended(tmp_path / "other", tmp_path / "run")


def test_bad_settings_are_refused():
    with pytest.raises(SettingError, match="steps"):
        ExtendSettings(steps=0)
    with pytest.raises(SettingError, match="continuation"):
        ExtendSettings(continuation="magic")
