"""Nothing is written through a link that somebody planted: the file behind it keeps its content."""

import os
from pathlib import Path

import pytest

from worldrl.core.errors import RunDirectoryError, WorldrlError
from worldrl.core.storage.atomic import atomic_folder, open_regular, open_to_append, write_file
from worldrl.core.storage.lock import take_lock
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.core.storage.run import RunDirectory
from worldrl.data.lerobot.durable import append_durably, write_durably, writer_lock
from worldrl.recipes.folder_lock import exclusive_folder

SECRET = b"precious: 1\n"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_bytes(SECRET)
    return file


def plant(folder: Path, name: str, target: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).symlink_to(target)
    return folder / name


@pytest.mark.parametrize("name", ["run.lock", "config.yaml", "run_clock.json", "result.json", "metrics.jsonl"])
def test_a_run_directory_with_planted_links(name: str, precious: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plant(folder, name, precious)
    try:
        with RunDirectory.open(folder, command="collect", config={}, resume_command="x") as run:
            with MetricLog(run.path, tracker=TrackerName.none) as log:
                log.write("loss", 1, {"x": 1.0})
            run.write_result({}, seed=0, device="cpu")
    except WorldrlError as error:
        assert str(folder) in str(error)  # noqa: PT017  (written files replace a link, others refuse it)
    assert precious.read_bytes() == SECRET


def test_writers_of_datasets_and_locks(precious: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    link = plant(folder, "info.json.partial", precious)
    with pytest.raises(OSError, match="symbolic link"):
        write_durably(folder / "info.json", b"{}")
    link.unlink()
    write_durably(folder / "info.json", b"{}")
    for planted in (plant(folder, "journal", precious), plant(folder, "lock", precious)):
        with pytest.raises(OSError, match="symbolic link"):
            append_durably(planted, b"row")
        with pytest.raises(OSError, match="symbolic link"), writer_lock(planted, "dataset"):
            pass
    with pytest.raises(RunDirectoryError, match="a file or a link to nothing is in the way"), exclusive_folder(folder):
        pass
    with pytest.raises(RunDirectoryError, match="lock: cannot be written"):
        take_lock(folder / "lock", "collect")
    assert precious.read_bytes() == SECRET


def test_files_and_folders_replace_a_link_and_spare_its_target(precious: Path, tmp_path: Path) -> None:
    link = plant(tmp_path / "out", "page.html", precious)
    write_file(link, b"new")
    assert (link.read_bytes(), link.is_symlink()) == (b"new", False)
    planted = plant(tmp_path / "out", "policy", tmp_path)
    with pytest.raises(WorldrlError, match="is a file or a link"), atomic_folder(planted):
        pass
    assert precious.read_bytes() == SECRET


def test_pipes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"no regular file|No such device"):
        open_to_append(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_regular(tmp_path / "pipe", os.O_RDWR)
