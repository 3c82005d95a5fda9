"""A disk that is full, or a limit on file sizes: one error that names the folder, no crash, and nothing half-written.

The cases run in a process of their own, since a write that fails inside the HDF5 library ends the process; ``RLIMIT_FSIZE``
refuses a write as a full disk does. Where this user may mount, a small file system fills up for real.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COMMON = """
import json, resource, sys
from pathlib import Path
import numpy as np
from worldrl.core.errors import ArtefactError

def message(write, folder, limit):
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        write(folder)
    except ArtefactError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
MINARI = """
from worldrl.data.offline.minari_format import write_minari
from worldrl.data.offline.trajectories import DatasetInfo, VectorEpisode, from_episodes
info = DatasetInfo("test", (-2.0,), (2.0,), dataset_id="a/b/c-v0", env_id="Pendulum-v1", max_episode_steps=200)
noise = np.random.default_rng(0)
rows = [noise.uniform(-1, 1, size).astype(np.float32) for size in ((201, 3), (200, 1), 200)]
data = from_episodes(info, [VectorEpisode(*rows, terminated=False, truncated=True)] * 60)

def write(folder):
    write_minari(folder, data, algorithm="", author="", description="")
"""
LEROBOT = """
from worldrl.core.embodiment import Embodiment
from worldrl.core.types import Episode
from worldrl.data.lerobot.writer import LeRobotWriter
robot = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
noise = np.random.default_rng(0)
sizes = {"state": (9, 8), "command": (9, 7), "action": (8, 7), "reward": 8}
episode = Episode(
    noise.integers(0, 256, (9, 1, 32, 32, 3), dtype=np.uint8),
    **{name: noise.uniform(-1, 1, size).astype(np.float32) for name, size in sizes.items()},
    contact=np.zeros(9, bool), terminated=False, truncated=True, instruction="lift it", task="Lift", cameras=("scene",), meta={}
)

def write(folder):
    with LeRobotWriter(folder, fps=20, image_size=(32, 32), embodiment=robot) as writer:
        for _ in range(20):
            writer.add_episode(episode)
"""
PRINT = """
print(json.dumps([message(write, Path(folder), int(limit)) for folder, limit in json.loads(sys.argv[1])]))
"""
NO_LIMIT = -1


def messages(script: str, *cases: tuple[Path, int]) -> list[Any]:
    """Write into folders under limits on file sizes (bytes); what was said of each, None where it went well."""
    arguments = json.dumps([(str(folder), limit) for folder, limit in cases])
    done = subprocess.run(
        [sys.executable, "-c", COMMON + script + PRINT, arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_minari_under_a_limit_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    *refused, whole = messages(MINARI, *((tmp_path / "store", limit) for limit in (0, 3_000, 200_000, NO_LIMIT)))
    assert whole is None
    for text in refused:
        assert text.startswith(f"{tmp_path / 'store'}")
        assert "cannot be written: File too large" in text
    assert len(list(tmp_path.rglob("*.hdf5"))) == 1
    assert not [path for path in tmp_path.rglob("*") if ".tmp-" in path.name]


def test_lerobot_under_a_limit_continues_once_there_is_room(tmp_path: Path) -> None:
    limits = (0, 500, 4_000, 20_000)
    cases = [(tmp_path / str(limit), given) for limit in limits for given in (limit, NO_LIMIT)]
    said = messages(LEROBOT, *cases)
    for (folder, _), refused, whole in zip(cases[::2], said[::2], said[1::2], strict=True):
        assert refused.startswith(f"{folder}: cannot be written: File too large")
        assert whole is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 192 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("script", [MINARI, LEROBOT], ids=["minari", "lerobot"])
def test_a_full_disk_is_one_error(small_disk: Path, script: str) -> None:
    if script is MINARI:
        pytest.importorskip("minari")
    (text,) = messages(script, (small_disk / "data", NO_LIMIT))
    assert text.startswith(str(small_disk))
    assert "No space left on device" in text
    assert "free some space" in text
