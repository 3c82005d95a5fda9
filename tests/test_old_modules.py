"""Import paths of version 0.1.

Unit under test: `worldrl.old_modules`. Old paths give the very modules of the new ones.
"""

import importlib
import subprocess
import sys

import pytest

from worldrl.old_modules import MOVED, present_name


def test_every_old_path_gives_the_moved_module() -> None:
    for old, now in MOVED.items():
        sys.modules.pop(old, None)
        with pytest.warns(DeprecationWarning, match="is now"):
            module = importlib.import_module(old)
        new = importlib.import_module(now)
        assert module is new, old
        assert new.__spec__ is not None
        assert new.__spec__.name == now


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("worldrl.algorithms.offline.ravl", "worldrl.methods.offline.ravl"),
        ("worldrl.algorithms.alignment.flow_grpo", "worldrl.methods.alignment.flow_grpo"),
        ("worldrl.world_models.offline.ensemble", "worldrl.world_models.state.ensemble"),
        ("worldrl.jobs.reproductions.findings", "worldrl.reproductions.findings"),
    ],
)
def test_modules_of_moved_folders_are_not_loaded_twice(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="is now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)


def test_other_names_are_left_alone() -> None:
    assert present_name("worldrl.core.errors") is None
    assert present_name("worldrl.algorithmsx") is None
    with pytest.raises(ModuleNotFoundError, match=r"worldrl\.core\.nothing"):
        importlib.import_module("worldrl.core.nothing")


def test_classes_are_equal_in_a_new_process() -> None:
    program = (
        "from worldrl.data.dataset import EpisodeDataset as a\n"
        "from worldrl.data.lerobot.dataset import EpisodeDataset as b\nprint(a is b)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True"
