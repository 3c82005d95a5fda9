"""Unit under test: ``core.storage.capacity``, and that commands ask it before they begin."""

import numpy as np
import pytest
import torch
from torch import nn

from worldrl.cli import USER_ERROR, main
from worldrl.core.errors import SettingError
from worldrl.core.storage import capacity as room
from worldrl.data.lerobot.writer import LEAST_FILE, least_bytes

CPU = torch.device("cpu")


@pytest.fixture
def small_machine(monkeypatch):
    """100 kB of disk and 1 MB of memory."""
    monkeypatch.setattr(room, "free_bytes", lambda _folder: 100_000)
    monkeypatch.setattr(room, "available_memory", lambda: 1_000_000)


def test_what_fits_passes_and_what_does_not_names_both_sizes(small_machine, tmp_path):
    room.require_disk(tmp_path, 100_000, "a=1")
    room.require_memory(1_000_000, "a=1")
    with pytest.raises(SettingError, match=r"a=2, which takes at least 0.2 MB of disk, 0.1 MB are free in"):
        room.require_disk(tmp_path, 200_000, "a=2")
    with pytest.raises(SettingError, match=r"a=2, which takes at least 3,000.0 GB of memory, 1.0 MB are free"):
        room.require_memory(3 * 10**12, "a=2")


def test_a_network_is_counted_without_being_made(small_machine):
    room.require_model_memory(lambda: nn.Linear(100, 100), CPU, "model")
    with pytest.raises(SettingError, match=r"model: its sizes make a network of 1,000,001,000,000 weights"):
        room.require_model_memory(lambda: nn.Linear(10**6, 10**6), CPU, "model")


def test_counting_draws_no_random_number(small_machine):
    before = torch.get_rng_state()
    room.require_model_memory(lambda: nn.Linear(10, 10), CPU, "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dataset_takes_no_less_than_is_claimed(tmp_path):
    """A black film is the least that PNG can make of images."""
    from worldrl.core.embodiment import Embodiment
    from worldrl.core.types import Episode
    from worldrl.data.lerobot.writer import LeRobotWriter

    robot = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
    sizes = {"state": (9, 8), "command": (9, 7), "action": (8, 7), "reward": (8,)}
    arrays = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    ends = {"contact": np.zeros(9, bool), "terminated": False, "truncated": True}
    texts = {"instruction": "lift it", "task": "Lift", "cameras": ("scene",), "meta": {}}
    with LeRobotWriter(tmp_path / "d", fps=20, image_size=(64, 64), embodiment=robot) as writer:
        writer.add_episode(Episode(np.zeros((9, 1, 64, 64, 3), np.uint8), **arrays, **ends, **texts))
    (file,) = (tmp_path / "d").rglob("data/**/*.parquet")
    assert least_bytes(1, 9, 1, 64) > LEAST_FILE
    assert file.stat().st_size >= least_bytes(1, 9, 1, 64)


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("collect preset=tiny expert_episodes=1000", "expert_episodes=1000"),
        ("make-dataset env=Pendulum-v1 rows=1000000", "rows=1000000 of 16 bytes"),
        (
            "make-dataset env=Pendulum-v1 rows=2000 kinds=[random,medium,expert,full-replay] training.steps=1000000",
            "training.steps",
        ),
        ("make-dataset env=Pendulum-v1 rows=2000 training.steps=100", "rows=2000 for each of kinds="),
    ],
)
def test_commands_refuse_before_they_begin(small_machine, tmp_path, capfd, command, asked):
    if command.startswith("make-dataset"):
        pytest.importorskip("stable_baselines3")
    assert main([*command.split(), f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert asked in line
    assert "which takes at least" in line
    assert not (tmp_path / "run" / "dataset").exists()


def test_a_mapped_array_lies_in_a_file_without_a_name(monkeypatch, tmp_path):
    array = room.mapped_array((101, 10), np.uint8, tmp_path, "a=1")
    array[:] = np.arange(10)
    assert (array == np.arange(10)).all()
    assert isinstance(array.base, np.memmap)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(room, "free_bytes", lambda _folder: 1009)
    with pytest.raises(SettingError, match=r"a=2, which takes at least 0\.0 MB of disk"):
        room.mapped_array((101, 10), np.uint8, tmp_path, "a=2")


def test_what_needs_more_than_an_eighth_of_the_memory_is_large(monkeypatch):
    monkeypatch.setattr(room, "available_memory", lambda: 8000)
    assert [room.is_large(size) for size in (1000, 1001)] == [False, True]
