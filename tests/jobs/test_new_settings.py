"""A run that was begun before a setting existed: ``worldrl.recipes.run``."""

from dataclasses import dataclass, field

import pytest
import yaml

from worldrl.core.errors import RunDirectoryError
from worldrl.recipes.run import open_run
from worldrl.settings import required, setting


@dataclass
class Group:
    """A group of settings."""

    width: int = 4
    added: float = 0.5


@dataclass
class Settings:
    """Settings of a command."""

    data: str = required("data", made_by="worldrl collect")
    run_dir: str = setting("", "where")
    seed: int = setting(0, "seed")
    added: list[int] = setting([1], "newer than the run")
    group: Group = field(default_factory=lambda: Group(added=0.25))
    free: dict[str, int] = setting({"a": 1}, "names that the user chooses")


@pytest.fixture
def begun(tmp_path):
    """A run, as a version without both ``added`` wrote it."""

    def begin(**given):
        with open_run("evaluate", Settings("d", str(tmp_path), **given)) as run:
            (run.path / "work").write_text("begun")
        config = yaml.safe_load((tmp_path / "config.yaml").read_text())
        del config["added"], config["group"]["added"]
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    return begin


def resume(tmp_path, **given):
    with open_run("evaluate", Settings("d", str(tmp_path), **given)) as run:
        return run.config


def test_the_default_of_a_newer_setting_resumes_the_run(begun, tmp_path):
    begun(seed=3, free={})
    assert resume(tmp_path, seed=3, free={})["group"] == {"width": 4, "added": 0.25}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"added": [2]}, r"added\.0: 1 -> 2|added: "),
        ({"group": Group(added=0.5)}, r"group\.added: 0\.25 -> 0\.5"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"free": {}}, "free"),
    ],
)
def test_another_value_or_another_setting_is_refused(begun, tmp_path, given, said):
    begun()
    with pytest.raises(RunDirectoryError, match=f"another config: .*({said})"):
        resume(tmp_path, **given)


def test_a_setting_that_is_gone_is_refused(begun, tmp_path):
    begun()
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "removed": 1}))
    with pytest.raises(RunDirectoryError, match="removed: 1 -> "):
        resume(tmp_path)
