"""The real lerobot package: datasets that it writes open here as they were written.

Run ``worldrl setup lerobot`` once, then ``pytest -m lerobot``. Units under test: ``worldrl.data.foreign_*``; without lerobot
they are tested by ``tests/data/test_foreign.py``.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from worldrl.cli import main
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.policies.lerobot.worker import OFFLINE, lerobot_python

pytestmark = pytest.mark.lerobot
CODED = 12
"""Mean difference of pixels that AV1 at lerobot's quality may make in images of coarse noise."""


@pytest.fixture(scope="module")
def demos(libero_demo):
    return [
        libero_demo(0, size=128),
        libero_demo(1, rows=20, size=128, sentence="turn on the stove"),
        libero_demo(2, size=128),
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory, demos):
    """Folders ``image`` and ``video``."""
    try:
        python = lerobot_python()
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("written")
    arrays = {f"{n}/{name}": np.asarray(values) for n, demo in enumerate(demos) for name, values in demo.items()}
    np.savez(folder / "arrays.npz", episodes=len(demos), **arrays)
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hub")}
    environment.pop("PYTHONPATH", None)
    command = [python, str(Path(__file__).parent / "make_dataset.py"), str(folder / "arrays.npz"), str(folder / "sets")]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    for kind in ("image", "video"):
        (folder / "sets" / kind / "worldrl.json").write_text('{"success": "every episode"}')
    return folder / "sets"


@pytest.mark.parametrize("kind", ["image", "video"])
def test_what_lerobot_wrote_is_read_as_it_was(kind, written, demos):
    data = EpisodeDataset.open(written / kind)
    assert (data.embodiment, data.cameras, data.image_size) == (libero_embodiment(), ("scene", "wrist"), (128, 128))
    assert [record.instruction for record in data.records] == [demo["sentence"] for demo in demos]
    for demo, episode in zip(demos, data, strict=True):
        np.testing.assert_array_equal(episode.action, demo["action"][:-1])
        np.testing.assert_array_equal(episode.state, demo["observation.state"])
        for camera, feature in (("scene", "observation.images.image"), ("wrist", "observation.images.image2")):
            apart = np.abs(episode.view(camera).astype(float) - demo[feature]).mean(axis=(1, 2, 3))
            assert apart.max() <= (CODED if kind == "video" else 0)
            others = np.abs(episode.view(camera)[:-1].astype(float) - demo[feature][1:]).mean(axis=(1, 2, 3))
            assert others.min() > 2 * CODED  # a frame more or less would show
    assert any("images are taken as they are" in text for text in assumed(data.records))


def test_a_policy_is_trained_on_it(written, tmp_path):
    (written / "video" / "worldrl.json").write_text('{"image_size": 64, "success": "every episode"}')
    assert main(["train-policy", "preset=tiny", f"data=[{written / 'video'}]", f"run_dir={tmp_path / 'policy'}"]) == 0
