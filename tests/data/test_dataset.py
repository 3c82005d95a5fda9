"""EpisodeDataset: lazy reading, subsets, concatenation, fingerprints."""

import dataclasses

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage import capacity
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.format import data_path


@pytest.fixture
def dataset(tmp_path, make_episode, record):
    episodes = [make_episode(n, 4 + n, success=n % 2 == 0, task=("Push", "Pick")[n // 3]) for n in range(5)]
    return EpisodeDataset.open(record(tmp_path / "d", episodes))


def test_summary_counts(dataset):
    summary = dataset.summary()
    assert (summary["episodes"], summary["successes"], summary["steps"], summary["frames"]) == (5, 3, 30, 35)
    assert {task: (part["episodes"], part["successes"]) for task, part in summary["tasks"].items()} == {
        "Push": (3, 2),
        "Pick": (2, 1),
    }
    assert summary["sources"] == {"expert": 5}
    assert dataset.tasks() == ("Pick", "Push")


def test_opening_and_subsets_read_no_data_file(dataset, tmp_path):
    for path in (tmp_path / "d/data").rglob("*.parquet"):
        path.unlink()
    opened = EpisodeDataset.open(tmp_path / "d")
    assert len(opened.subset(lambda record: record.success)) == 3
    with pytest.raises(ArtefactError, match="missing"):
        opened[0]


def test_loaded_dataset_needs_no_files(dataset, tmp_path, make_episode, assert_same):
    loaded = dataset.load(workers=3)
    (tmp_path / "d" / data_path(1)).unlink()
    assert_same(loaded[1], make_episode(1, 5, success=False, task="Push"))
    assert loaded[1] is loaded[1]


def test_a_dataset_larger_than_memory_is_mapped_and_the_same(dataset, tmp_path, make_episode, assert_same, monkeypatch):
    monkeypatch.setattr(capacity, "available_memory", lambda: 1000)
    folder = tmp_path / "scratch"
    folder.mkdir()
    loaded = EpisodeDataset.open(tmp_path / "d").load(scratch=folder)
    assert list(folder.iterdir()) == []
    for number, episode in enumerate(loaded):
        assert_same(episode, dataset[number])
    assert isinstance(loaded[0].frames.base.base, np.memmap)
    loaded[0].frames[:] = 0  # the images of the recording itself stay as they were
    assert dataset[0].frames.any()


def test_subset_order_and_negative_and_slice(dataset):
    assert [episode.meta["seed"] for episode in dataset.subset([3, 0, 3])] == [3, 0, 3]
    assert [episode.meta["seed"] for episode in dataset[1:3]] == [1, 2]
    assert dataset[-1].meta["seed"] == 4
    assert [record.index for record in dataset.subset(lambda record: record.task == "Pick").records] == [3, 4]
    with pytest.raises(SettingError, match=r"position 5 is outside 0\.\.4"):
        dataset.subset([5])
    with pytest.raises(IndexError):
        dataset[5]


def test_concatenate(dataset, tmp_path, make_episode, record, embodiment):
    other = EpisodeDataset.open(record(tmp_path / "e", [make_episode(9)]))
    both = dataset.concatenate(other)
    assert [episode.meta["seed"] for episode in both] == [0, 1, 2, 3, 4, 9]
    assert both.load().subset([5, 0]).source == f"{tmp_path / 'd'}, {tmp_path / 'e'}"


def test_datasets_of_two_robots_are_not_joined(dataset, tmp_path, make_episode, embodiment):
    def recorded(**fields):
        robot = dataclasses.replace(embodiment, **fields)
        return EpisodeDataset.from_episodes([make_episode(0)], fps=robot.control_hz, embodiment=robot)

    with pytest.raises(
        ArtefactError, match=rf"{tmp_path / 'd'} and .* fps: 20 -> 10, .*control_hz: 20.0 -> 10.0; record"
    ):
        dataset.concatenate(recorded(control_hz=10.0))
    with pytest.raises(
        ArtefactError, match=r"differ in embodiment\.position_scale: 0\.02 -> 0\.05; give datasets of one"
    ):
        dataset.concatenate(recorded(position_scale=0.05))
    wrist = EpisodeDataset.from_episodes([make_episode(0, cameras=("wrist",))], fps=20, embodiment=embodiment)
    with pytest.raises(ArtefactError, match="cameras"):
        dataset.concatenate(wrist)


def test_suites_are_no_reason_against_joining(dataset):
    def named(suite):
        return EpisodeDataset(dataclasses.replace(dataset.header, suite=suite), dataset._entries)

    assert [named(a).concatenate(named(b)).header.suite for a, b in (("x", "x"), ("x", "y"), ("x", ""), ("", "x"))] == [
        "x",
        "",
        "",
        "",
    ]


def test_fingerprint_is_of_content(dataset, tmp_path, make_episode, record, embodiment):
    episodes = list(dataset)
    memory = EpisodeDataset.from_episodes(episodes, fps=20, embodiment=embodiment)
    copied = EpisodeDataset.open(record(tmp_path / "copy", episodes))
    assert dataset.fingerprint == dataset.load().fingerprint == memory.fingerprint == copied.fingerprint
    assert dataset.subset([1, 0]).fingerprint != dataset.subset([0, 1]).fingerprint
    frames = episodes[0].frames.copy()
    frames[1, 0, 2, 2, 1] ^= 1
    for change in ({"frames": frames}, {"instruction": "x"}, {"meta": {}}, {"terminated": False}):
        other = [dataclasses.replace(episodes[0], **change), *episodes[1:]]
        assert EpisodeDataset.from_episodes(other, fps=20, embodiment=embodiment).fingerprint != dataset.fingerprint


def test_opening_while_a_writer_is_at_work(tmp_path, make_episode, open_writer):
    with open_writer(tmp_path / "d") as writer:
        for number in range(3):
            writer.add_episode(make_episode(number))
            assert len(EpisodeDataset.open(tmp_path / "d")) == number + 1


def test_empty_dataset(tmp_path, open_writer):
    open_writer(tmp_path / "d").close()
    dataset = EpisodeDataset.open(tmp_path / "d")
    assert len(dataset) == 0
    assert dataset.summary()["episodes"] == 0
    assert dataset.load().tasks() == ()


def test_from_episodes_checks(make_episode, embodiment):
    with pytest.raises(SettingError, match="at least one"):
        EpisodeDataset.from_episodes([], fps=20, embodiment=embodiment)
    with pytest.raises(ArtefactError, match="episode 1: frames must be uint8"):
        EpisodeDataset.from_episodes([make_episode(0), make_episode(1, size=(8, 8))], fps=20, embodiment=embodiment)


def test_read_arrays_are_writable(dataset):
    episode = dataset[0]
    episode.action[0] = 0
    assert not np.array_equal(dataset[0].action, episode.action)
