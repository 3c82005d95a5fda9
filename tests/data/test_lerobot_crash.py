"""``kill -9`` at any instant loses at most the episode in flight."""

import importlib.util
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset, check_dataset

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def collector():
    spec = importlib.util.spec_from_file_location("collect_forever", HERE / "collect_forever.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_intact(folder, acknowledged, collector, assert_same):
    """Open what is on disk, then append to it; return how many episodes had survived."""
    dataset = EpisodeDataset.open(folder)
    survived = len(dataset)
    assert acknowledged <= survived <= acknowledged + 1
    for number, episode in enumerate(dataset):
        assert_same(episode, collector.episode(number))
    with collector.open_writer(folder) as writer:
        assert check_dataset(folder) == []  # opening alone has cleared away what was in flight
        assert writer.add_episode(collector.episode(survived)) == survived
    assert check_dataset(folder) == []
    assert_same(EpisodeDataset.open(folder)[survived], collector.episode(survived))
    assert not list(folder.rglob("*.partial"))
    return survived


def test_killed_at_random_times(tmp_path, collector, assert_same):
    """The same folder is collected into, killed and taken up again several times."""
    chance = random.Random(0)
    total = 0
    for _ in range(5):
        command = [sys.executable, str(HERE / "collect_forever.py"), str(tmp_path / "d")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        assert int(first) == total
        acknowledged = int([first, *rest][-1]) + 1
        total = assert_intact(tmp_path / "d", acknowledged, collector, assert_same) + 1
    assert total > 10


def test_killed_before_each_file_operation(tmp_path, collector, assert_same):
    subprocess.run([sys.executable, str(HERE / "crash_points.py"), str(tmp_path)], check=True)
    folders = sorted(tmp_path.glob("*.acknowledged"), key=lambda path: int(path.stem))
    assert len(folders) > 30  # two episodes, the header and two finalisations have that many operations
    survivors = []
    for path in folders:
        folder, acknowledged = tmp_path / path.stem, int(path.read_text() or 0)
        if not (folder / "meta/worldrl.jsonl").exists():
            with pytest.raises(ArtefactError):
                EpisodeDataset.open(folder)
            with collector.open_writer(folder) as writer:
                assert len(writer) == acknowledged == 0
            continue
        survivors.append(assert_intact(folder, acknowledged, collector, assert_same))
    assert set(survivors) == {0, 1, 2}


def test_torn_journal_line_is_cut_off(tmp_path, collector, assert_same):
    """Every possible tear of the last line leaves the earlier episodes."""
    with collector.open_writer(tmp_path / "d") as writer:
        writer.add_episode(collector.episode(0))
    journal = tmp_path / "d/meta/worldrl.jsonl"
    whole = journal.read_bytes()
    for cut in (1, 2, 17, 400):
        journal.write_bytes(whole + whole.splitlines(keepends=True)[1][:-cut])
        assert len(EpisodeDataset.open(tmp_path / "d")) == 1
    assert assert_intact(tmp_path / "d", 1, collector, assert_same) == 1
