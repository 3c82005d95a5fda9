"""Synthetic episodes whose pixels and actions say where they come from."""

import os

import numpy as np
import pytest

from worldrl.core.embodiment import Embodiment
from worldrl.core.types import Episode
from worldrl.data.lerobot.writer import LeRobotWriter

ARRAYS = ("frames", "state", "command", "action", "reward", "contact")


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Skip the wait for the disk: no test here cuts the power, and a kill is survived without it."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(scope="session")
def embodiment():
    return Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)


@pytest.fixture(scope="session")
def make_episode():
    """Episode ``number``: pixel (0, 0) is (number, frame, camera), action t starts with t/1000, the rest is noise."""

    def make(
        number=0, steps=20, *, cameras=("scene",), size=(12, 16), close_at=None, contact_at=None, success=True, **over
    ):
        noise = np.random.default_rng(number)
        frames = noise.integers(0, 256, (steps + 1, len(cameras), *size, 3), dtype=np.uint8)
        frames[:, :, 0, 0, 0] = number
        frames[:, :, 0, 0, 1] = np.arange(steps + 1)[:, None]
        frames[:, :, 0, 0, 2] = np.arange(len(cameras))
        action = noise.uniform(-1, 1, (steps, 7)).astype(np.float32)
        action[:, 0] = np.arange(steps) / 1000
        action[:, 6] = -1
        if close_at is not None:  # action close_at - 1 closes, frame close_at shows it
            action[close_at - 1 :, 6] = 1
        command = noise.normal(size=(steps + 1, 7)).astype(np.float32)
        command[:, 0] = np.arange(steps + 1) / 1000
        command[0, 6], command[1:, 6] = -1, action[:, 6]
        contact = np.zeros(steps + 1, dtype=bool)
        if contact_at is not None:
            contact[contact_at:] = True
        reward = np.zeros(steps, dtype=np.float32)
        reward[-1] = float(success)
        fields = {
            "frames": frames,
            "state": noise.normal(size=(steps + 1, 8)).astype(np.float32),
            "command": command,
            "action": action,
            "reward": reward,
            "contact": contact,
            "terminated": success,
            "truncated": not success,
            "instruction": f"pick up cube {number % 3}",
            "task": "PickRedCube",
            "cameras": cameras,
            "meta": {"seed": number, "index": number, "source": "expert"},
        }
        return Episode(**(fields | over))

    return make


@pytest.fixture(scope="session")
def open_writer(embodiment):
    def make(folder, *, cameras=("scene",), size=(12, 16), fps=20):
        return LeRobotWriter(folder, fps=fps, cameras=cameras, image_size=size, embodiment=embodiment)

    return make


@pytest.fixture
def record(open_writer):
    """Write episodes into a folder, and close it."""

    def write(folder, episodes):
        first = episodes[0]
        with open_writer(folder, cameras=first.cameras, size=first.frames.shape[2:4]) as writer:
            for episode in episodes:
                writer.add_episode(episode)
        return folder

    return write


@pytest.fixture(scope="session")
def assert_same():
    """Compare every field of two episodes, arrays bit for bit."""

    def check(a, b):
        for name in ARRAYS:
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype, name
            assert x.shape == y.shape, name
            assert x.tobytes() == y.tobytes(), name
        for name in ("terminated", "truncated", "instruction", "task", "cameras"):
            assert getattr(a, name) == getattr(b, name), name
        assert dict(a.meta) == dict(b.meta)

    return check
