"""Damage is an error that names the file and the fix, never a wrong frame."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset, check_dataset, repair_dataset
from worldrl.data.lerobot.format import JOURNAL_PATH, data_path
from worldrl.data.lerobot.journal import seal, unseal
from worldrl.data.lerobot.writer import finalize_dataset


@pytest.fixture(scope="module")
def clean(tmp_path_factory, make_episode, open_writer):
    folder = tmp_path_factory.mktemp("clean") / "d"
    with open_writer(folder) as writer:
        for number in range(4):
            writer.add_episode(make_episode(number, 5))
    return folder


@pytest.fixture
def damaged(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "d")


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("where", [0.0, 0.2, 0.5, 0.8, 0.999])
def test_a_flipped_bit_in_a_data_file(damaged, where):
    path = damaged / data_path(2)
    flip(path, int(where * path.stat().st_size))
    dataset = EpisodeDataset.open(damaged)
    assert len(dataset[1].action) == 5
    with pytest.raises(ArtefactError, match=r"file-002\.parquet: damaged: SHA-256 .* repair_dataset"):
        dataset[2]
    with pytest.raises(ArtefactError, match=r"file-002"):
        dataset.load()
    assert [(finding.file, finding.episode) for finding in check_dataset(damaged)] == [(str(data_path(2)), 2)]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_data_file(damaged, kept):
    path = damaged / data_path(1)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ArtefactError, match=r"file-001\.parquet: damaged"):
        EpisodeDataset.open(damaged)[1]


def test_a_missing_data_file(damaged):
    (damaged / data_path(3)).unlink()
    with pytest.raises(ArtefactError, match=r"file-003\.parquet: missing, though the journal lists episode 3"):
        EpisodeDataset.open(damaged)[3]


def test_swapped_data_files(damaged):
    a, b = damaged / data_path(0), damaged / data_path(1)
    a_bytes, b_bytes = a.read_bytes(), b.read_bytes()
    a.write_bytes(b_bytes)
    b.write_bytes(a_bytes)
    assert {finding.episode for finding in check_dataset(damaged)} == {0, 1}


def test_every_flipped_journal_byte_is_noticed(damaged):
    path = damaged / JOURNAL_PATH
    whole = path.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(whole) - 1, 40):
        flip(path, int(position))
        with pytest.raises(ArtefactError, match=r"worldrl\.jsonl"):
            EpisodeDataset.open(damaged)
        path.write_bytes(whole)


def test_a_cut_journal_is_not_taken_for_a_shorter_dataset(damaged, open_writer):
    path = damaged / JOURNAL_PATH
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(ArtefactError, match=r"lists 2 episodes, .* promises 4"):
        EpisodeDataset.open(damaged)
    with pytest.raises(ArtefactError, match="the journal was cut"):
        open_writer(damaged)
    assert (damaged / data_path(3)).exists()


def test_missing_and_external_folders(tmp_path, damaged):
    with pytest.raises(ArtefactError, match="there is no dataset folder"):
        EpisodeDataset.open(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ArtefactError, match=r"notes\.txt: is a file; give the dataset's folder"):
        EpisodeDataset.open(tmp_path / "notes.txt")
    with pytest.raises(ArtefactError, match="not a dataset"):
        EpisodeDataset.open(tmp_path)
    (damaged / JOURNAL_PATH).unlink()
    with pytest.raises(ArtefactError, match="a dataset of worldrl without its journal"):
        EpisodeDataset.open(damaged)


@pytest.mark.parametrize("version", ["v2.1", "v4.0"])
def test_other_lerobot_versions(damaged, version):
    path = damaged / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"codebase_version": version}))
    with pytest.raises(ArtefactError, match=f"LeRobotDataset {version}, worldrl reads v3.0"):
        EpisodeDataset.open(damaged)


def test_another_rate_in_the_derived_file_alone(damaged):
    path = damaged / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fps": 30}))
    with pytest.raises(ArtefactError, match=r"info\.json: states 30 frames per second, the journal 20; set fps to 20"):
        EpisodeDataset.open(damaged)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"response": 0.265}, r"another robot than the journal, .*\(response: \(absent\) -> 0\.265\)"),
        ({"position_scale": 0.01}, r"\(position_scale: .* -> 0\.01\); write the journal's"),
    ],
)
def test_another_robot_in_the_derived_file_alone(damaged, stated, message):
    path = damaged / "meta/info.json"
    info = json.loads(path.read_text())
    info["worldrl"]["embodiment"] |= stated
    path.write_text(json.dumps(info))
    with pytest.raises(ArtefactError, match=message):
        EpisodeDataset.open(damaged)
    info["worldrl"]["embodiment"] = {}  # one that states nothing contradicts nothing
    path.write_text(json.dumps(info))
    assert len(EpisodeDataset.open(damaged)) == 4


def test_newer_journal_schema(damaged):
    path = damaged / JOURNAL_PATH
    header, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(seal(unseal(header) | {"schema": 99}) + b"".join(rest))
    with pytest.raises(ArtefactError, match="journal schema 99"):
        EpisodeDataset.open(damaged)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fps": 10}, r"fps: 10 beside the embodiment's control_hz 20\.0"),
        ({"fps": "20"}, "fps: Input should be a valid integer, got '20'"),
        ({"cameras": ["scene", "scene"]}, "cameras: need names, each once"),
        ({"cameras": []}, "cameras: need names"),
        ({"cameras": "scene"}, "cameras: Input should be a valid"),
        ({"image_size": [0, 16]}, "image_size: needs rows and columns of at least 1"),
        ({"embodiment": {"position_scale": -1.0}}, "position_scale: must be positive, got -1.0"),
        ({"embodiment": {"control_hz": 10.0}}, r"fps: 20 beside the embodiment's control_hz 10\.0"),
    ],
)
def test_a_resealed_header_that_means_nothing(damaged, change, told):
    path = damaged / JOURNAL_PATH
    header, *rest = path.read_bytes().splitlines(keepends=True)
    entry = unseal(header)
    change = {"embodiment": entry["embodiment"] | change["embodiment"]} if "embodiment" in change else change
    path.write_bytes(seal(entry | change) + b"".join(rest))
    with pytest.raises(ArtefactError, match=rf"worldrl\.jsonl: the header line is damaged \(.*{told}"):
        EpisodeDataset.open(damaged)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"task": 5}, "task: Input should be a valid string, got 5"),
        ({"instruction": None}, "instruction: Input should be a valid string"),
        ({"success": 1}, "success: Input should be a valid boolean"),
        ({"meta": []}, "meta: Input should be an object"),
        ({"length": "5"}, "length: Input should be a valid integer"),
        ({"lengths": 5}, "unknown field 'lengths'; did you mean 'length'"),
    ],
)
def test_a_resealed_record_of_other_types(damaged, change, told):
    path = damaged / JOURNAL_PATH
    header, first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + seal(unseal(first) | change) + b"".join(rest))
    with pytest.raises(ArtefactError, match=rf"line 2 \(episode 0\) is damaged: record: {told}"):
        EpisodeDataset.open(damaged)


def test_wrong_fps(damaged):
    with pytest.raises(ArtefactError, match="recorded at 20 frames per second, 10 is needed"):
        EpisodeDataset.open(damaged, fps=10)
    assert EpisodeDataset.open(damaged, fps=20).fps == 20


def test_timestamps_that_disagree_with_fps(tmp_path, make_episode, open_writer, monkeypatch):
    """A writer with a wrong clock: the hash is right, the numbers are not."""
    from worldrl.data.lerobot import writer as lerobot_writer

    real = lerobot_writer.episode_columns

    def fast(episode, record, header):
        robot = replace(header.embodiment, control_hz=2 * header.fps)
        return real(episode, record, replace(header, fps=2 * header.fps, embodiment=robot))

    monkeypatch.setattr(lerobot_writer, "episode_columns", fast)
    with open_writer(tmp_path / "d") as writer:
        writer.add_episode(make_episode(0))
    monkeypatch.undo()
    with pytest.raises(ArtefactError, match=r"timestamp is .* at row 1, .* at 20 frames per second"):
        EpisodeDataset.open(tmp_path / "d")[0]


def test_check_compares_content_not_only_bytes(tmp_path, make_episode, open_writer, monkeypatch):
    """A writer that mixed up two episodes' frames has consistent hashes; the content digest tells."""
    from worldrl.data.lerobot import writer as lerobot_writer

    real = lerobot_writer.episode_table
    other = make_episode(1)
    monkeypatch.setattr(lerobot_writer, "episode_table", lambda _, columns, schema: real(other, columns, schema))
    with open_writer(tmp_path / "d") as writer:
        writer.add_episode(make_episode(0))
    monkeypatch.undo()
    assert ["not the one that was recorded" in finding.problem for finding in check_dataset(tmp_path / "d")] == [True]


def test_repair_keeps_the_verified_prefix(damaged, tmp_path, clean, assert_same):
    flip(damaged / data_path(2), 300)
    before = {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()}
    assert repair_dataset(damaged, tmp_path / "repaired") == 2
    assert {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()} == before
    assert check_dataset(tmp_path / "repaired") == []
    for a, b in zip(EpisodeDataset.open(tmp_path / "repaired"), EpisodeDataset.open(clean)[:2], strict=True):
        assert_same(a, b)
    with pytest.raises(ArtefactError, match="not empty"):
        repair_dataset(damaged, tmp_path / "repaired")


def test_repair_of_a_damaged_journal(damaged, tmp_path):
    path = damaged / JOURNAL_PATH
    first_lines = path.read_bytes().splitlines(keepends=True)[:2]
    flip(path, sum(map(len, first_lines)) + 40)
    assert [finding.episode for finding in check_dataset(damaged)] == [1]
    assert repair_dataset(damaged, tmp_path / "repaired") == 1


def test_unlisted_data_file_is_found_and_cleared(damaged):
    shutil.copy(damaged / data_path(0), damaged / data_path(4))
    assert [finding.file for finding in check_dataset(damaged)] == [str(data_path(4))]
    finalize_dataset(damaged)
    assert check_dataset(damaged) == []
