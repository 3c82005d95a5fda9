"""What is written comes back bit for bit, and numbers are contiguous."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset, check_dataset
from worldrl.data.lerobot.format import data_path
from worldrl.data.lerobot.metadata import arrow_type
from worldrl.data.lerobot.rows import encode_png
from worldrl.data.lerobot.writer import finalize_dataset


def adversarial(make_episode):
    return [
        make_episode(0, 7),
        make_episode(1, 1, success=False),
        make_episode(2, 30, instruction="hebe den „Würfel“ auf 🧊\n—\r第二行\u2028 'x'", task="Größe"),
        make_episode(3, 5, instruction="दाल उठाओ", meta={"nested": {"a": [1, 2.5, None, "ü"]}, "seed": 2**62}),
    ]


def test_every_field_survives(tmp_path, make_episode, record, assert_same):
    episodes = adversarial(make_episode)
    dataset = EpisodeDataset.open(record(tmp_path / "d", episodes))
    assert len(dataset) == 4
    for read, written in zip(dataset, episodes, strict=True):
        assert_same(read, written)
    for read, written in zip(dataset.load(), episodes, strict=True):
        assert_same(read, written)
    assert check_dataset(tmp_path / "d") == []


def test_two_cameras_keep_their_order(tmp_path, make_episode, record, assert_same):
    episode = make_episode(5, 9, cameras=("scene", "wrist"))
    dataset = EpisodeDataset.open(record(tmp_path / "d", [episode]))
    assert dataset.cameras == ("scene", "wrist")
    assert_same(dataset[0], episode)
    assert dataset[0].frames[3, 1, 0, 0].tolist() == [5, 3, 1]


def test_extreme_numbers_survive(tmp_path, make_episode, record, assert_same):
    state = np.full((4, 8), np.float32(1e-45))
    state[1], state[2] = np.finfo(np.float32).max, -0.0
    episode = make_episode(0, 3, state=state)
    assert_same(EpisodeDataset.open(record(tmp_path / "d", [episode]))[0], episode)


def test_png_is_lossless_in_rgb():
    import cv2

    frame = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    decoded = cv2.imdecode(np.frombuffer(encode_png(frame), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(decoded[..., ::-1], frame)


def test_numbers_are_contiguous_across_sessions(tmp_path, make_episode, open_writer):
    lengths = [4, 1, 6, 2]
    for session in (lengths[:2], lengths[2:]):
        with open_writer(tmp_path / "d") as writer:
            before = len(writer)
            assert [writer.add_episode(make_episode(before + i, n)) for i, n in enumerate(session)] == [
                before,
                before + 1,
            ]
    tables = [pq.read_table(tmp_path / "d" / data_path(i)) for i in range(4)]
    index = np.concatenate([table["index"].to_numpy() for table in tables])
    np.testing.assert_array_equal(index, np.arange(sum(lengths) + 4))
    assert [table["episode_index"][0].as_py() for table in tables] == [0, 1, 2, 3]
    assert [table["task_index"][0].as_py() for table in tables] == [0, 1, 2, 0]
    assert check_dataset(tmp_path / "d") == []


def test_last_row_holds_the_gripper_and_is_marked(tmp_path, make_episode, record):
    episode = make_episode(0, 6, close_at=3)
    table = pq.read_table(record(tmp_path / "d", [episode]) / data_path(0))
    assert table["is_last"].to_pylist() == [False] * 6 + [True]
    assert table["action"].to_pylist()[-1] == [0, 0, 0, 0, 0, 0, 1]
    assert table["next.reward"].to_pylist() == [0, 0, 0, 0, 0, 1, 0]


def test_statistics_leave_out_the_hold_action(tmp_path, make_episode, record):
    episodes = [make_episode(0, 6), make_episode(1, 11)]
    dataset = EpisodeDataset.open(record(tmp_path / "d", episodes))
    import json

    stats = json.loads((tmp_path / "d/meta/stats.json").read_text())
    action = np.concatenate([episode.action for episode in dataset]).astype(np.float64)
    np.testing.assert_allclose(stats["action"]["mean"], action.mean(0))
    np.testing.assert_allclose(stats["action"]["std"], action.std(0))
    np.testing.assert_allclose(stats["action"]["min"], action.min(0))
    assert stats["action"]["count"] == [17]
    pixels = np.concatenate([episode.frames for episode in dataset]) / 255.0
    np.testing.assert_allclose(np.ravel(stats["observation.images.scene"]["mean"]), pixels.mean((0, 1, 2, 3)))
    np.testing.assert_allclose(np.ravel(stats["observation.images.scene"]["std"]), pixels.std((0, 1, 2, 3)))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (
            "state",
            lambda a: np.where(np.arange(len(a))[:, None] == 3, np.nan, a).astype(np.float32),
            "not finite at row 3",
        ),
        ("action", lambda a: a * 3, "leaves \\[-1, 1\\]"),
        ("frames", lambda a: a.astype(np.float32), "frames must be uint8"),
        ("frames", lambda a: a[:-1], "frames must be uint8"),
        ("reward", lambda a: a.astype(np.float64), "reward must be float32"),
        ("meta", lambda _: {"x": np.float32(1)}, "JSON"),
        ("meta", lambda _: {"x": float("nan")}, "JSON"),
        ("cameras", lambda _: ("wrist",), "cameras"),
    ],
)
def test_a_bad_episode_is_refused_and_leaves_no_trace(tmp_path, make_episode, open_writer, name, spoil, message):
    good = make_episode(0)
    bad = make_episode(0, **{name: spoil(getattr(good, name))})
    with open_writer(tmp_path / "d") as writer:
        writer.add_episode(good)
        with pytest.raises(ArtefactError, match=message):
            writer.add_episode(bad)
        assert writer.add_episode(good) == 1
    assert check_dataset(tmp_path / "d") == []


def test_empty_episode_is_refused(tmp_path, make_episode, open_writer):
    with open_writer(tmp_path / "d") as writer, pytest.raises(ArtefactError, match="no action"):
        writer.add_episode(make_episode(0, 1, action=np.zeros((0, 7), np.float32)))


def test_reopening_with_another_header_is_refused(tmp_path, make_episode, record, open_writer):
    folder = record(tmp_path / "d", [make_episode(0)])
    with pytest.raises(ArtefactError, match=r"image_size is \[12, 16\], this writer has \[12, 12\]"):
        open_writer(folder, size=(12, 12))
    with pytest.raises(ArtefactError, match="cameras"):
        open_writer(folder, cameras=("wrist",))
    assert len(open_writer(folder)) == 1  # a refused writer let go of its lock


def test_fps_is_the_control_rate(tmp_path, open_writer):
    with pytest.raises(SettingError, match="control_hz 20"):
        open_writer(tmp_path / "d", fps=10)
    with pytest.raises(SettingError, match="whole number"):
        open_writer(tmp_path / "d", fps=12.5)


def test_second_writer_is_refused(tmp_path, open_writer):
    with open_writer(tmp_path / "d"), pytest.raises(ArtefactError, match="another writer"):
        open_writer(tmp_path / "d")


def test_external_folder_is_refused(tmp_path, open_writer):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ArtefactError, match="not empty"):
        open_writer(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_closed_writer_is_refused(tmp_path, make_episode, open_writer):
    writer = open_writer(tmp_path / "d")
    writer.close()
    writer.close()
    with pytest.raises(ArtefactError, match="closed"):
        writer.add_episode(make_episode(0))


def test_full_disk_loses_only_that_episode(tmp_path, make_episode, open_writer, monkeypatch, assert_same):
    """Each fsync in turn fails once; the writer continues afterwards."""
    import os

    real = os.fsync
    for failing in range(3):
        folder = tmp_path / str(failing)
        with open_writer(folder) as writer:
            writer.add_episode(make_episode(0))
            calls = iter(range(100))

            def fsync(descriptor, calls=calls, failing=failing):
                if next(calls) == failing:
                    raise OSError(28, "No space left on device")
                real(descriptor)

            monkeypatch.setattr(os, "fsync", fsync)
            with pytest.raises(ArtefactError, match="No space"):
                writer.add_episode(make_episode(1))
            monkeypatch.setattr(os, "fsync", real)
            assert writer.add_episode(make_episode(2)) == 1
        assert check_dataset(folder) == []
        assert_same(EpisodeDataset.open(folder)[1], make_episode(2))


def test_finalize_dataset_derives_what_was_deleted(tmp_path, make_episode, record):
    folder = record(tmp_path / "d", [make_episode(0), make_episode(1)])
    before = {path.name: path.read_bytes() for path in (folder / "meta").rglob("*") if path.is_file()}
    (folder / "meta/stats.json").unlink()
    (folder / "meta/tasks.parquet").write_bytes(b"PAR1 not really")
    assert {finding.file for finding in check_dataset(folder)} == {"meta/stats.json", "meta/tasks.parquet"}
    finalize_dataset(folder)
    assert check_dataset(folder) == []
    assert {path.name: path.read_bytes() for path in (folder / "meta").rglob("*") if path.is_file()} == before


def test_thousand_episodes_roll_over_to_the_next_chunk_folder():
    assert str(data_path(999)) == "data/chunk-000/file-999.parquet"
    assert str(data_path(1000)) == "data/chunk-001/file-000.parquet"


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("instruction", 5, "must be text"),
        ("instruction", None, "must be text"),
        ("instruction", "", "not empty"),
        ("instruction", " \n", "not empty"),
        ("instruction", "🧊 !", "at least one word"),
        ("instruction", "lift " * 33, "at most 32 words, got 33"),
        ("instruction", "lift \ud800", "no valid Unicode"),
        ("task", 5, "must be text"),
        ("task", "", "not empty"),
        ("task", "\udcff", "no valid Unicode"),
    ],
)
def test_a_text_that_no_reader_can_use_is_refused_before_anything_is_written(
    tmp_path, make_episode, open_writer, field, value, rule
):
    with open_writer(tmp_path / "d") as writer:
        writer.add_episode(make_episode(0))
        before = {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()}
        with pytest.raises(ArtefactError, match=f"d: episode 1: .*{field}.*{rule}"):
            writer.add_episode(make_episode(1, **{field: value}))
        assert {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()} == before
        writer.add_episode(make_episode(2))
    assert len(EpisodeDataset.open(tmp_path / "d")) == 2
    assert check_dataset(tmp_path / "d") == []


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        [1.5, 2.0],
        [1, 2.5],
        [True],
        ["a", "b"],
        [["a"], ["b", "c"]],
        [[1, 2], [3]],
        [[1.0], [2]],
        [[[[0.5]], [[1]]]],
    ],
)
def test_types_of_the_episode_table_are_those_that_pyarrow_infers(values):
    assert arrow_type(values) == pa.infer_type(values)
