import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from worldrl.core.errors import ArtefactError, RunDirectoryError
from worldrl.core.storage import atomic
from worldrl.core.storage.atomic import atomic_folder, recover, remove_folder, write_file

# Kills itself at the n-th call that touches the disk; prints "finished" when it never came to that.
KILLED_WRITER = """
import os, shutil, signal, sys
from pathlib import Path
from worldrl.core.storage.atomic import atomic_folder, remove_folder, write_file
what, target, moment = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
calls = 0
def deadly(function):
    def wrapper(*args, **kwargs):
        global calls
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper
for name in ("open", "write", "fsync", "replace", "close", "unlink", "rmdir", "mkdir"):
    setattr(os, name, deadly(getattr(os, name)))
if what == "file":
    write_file(target, b"new" * 1000)
elif what == "remove":
    remove_folder(target)
else:
    with atomic_folder(target) as temp:
        (temp / "a").write_bytes(b"new a")
        (temp / "sub").mkdir()
        (temp / "sub" / "b").write_bytes(b"new b")
print("finished")
"""

OLD = {"a": b"old a", "c": b"old c"}
NEW = {"a": b"new a", "sub/b": b"new b"}


def make_old(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, data in OLD.items():
        (folder / name).write_bytes(data)


def test_write_file_creates_parents_and_replaces(tmp_path, listing):
    path = tmp_path / "deep" / "er" / "file.json"
    write_file(path, b"one")
    write_file(path, b"two")
    assert listing(tmp_path) == {"deep/er/file.json": b"two"}


@pytest.mark.parametrize("what", ["file", "new folder", "old folder", "remove"])
def test_a_kill_at_any_moment_leaves_old_or_new_and_no_leftovers(what, tmp_path, child, listing):
    outcomes = set()
    for moment in range(1, 100):
        place = tmp_path / str(moment)
        target = place / "target"
        if what == "file":
            write_file(target, b"old")
        elif what != "new folder":
            make_old(target)
        result = child(KILLED_WRITER, what.split()[-1], target, moment)
        finished = "finished" in result.stdout
        assert finished or result.returncode == -signal.SIGKILL, result.stderr
        if place.exists():
            recover(place)
            assert [p.name for p in place.iterdir()] in ([], ["target"])
        state = target.read_bytes() if target.is_file() else listing(target) if target.exists() else None
        allowed = {
            "file": [b"old", b"new" * 1000],
            "new folder": [None, NEW],
            "old folder": [OLD, NEW],
            "remove": [OLD, None],
        }[what]
        assert state in allowed
        outcomes.add(allowed.index(state))
        if finished:
            assert state == allowed[1]
            break
    else:
        pytest.fail("the writer never finished")
    assert outcomes == {0, 1}, "the sweep must have met both outcomes"


def test_an_exception_leaves_what_was_there(tmp_path, listing):
    make_old(tmp_path / "target")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "target") as temp:
        (temp / "a").write_bytes(b"half" * (1 // 0))
    assert [p.name for p in tmp_path.iterdir()] == ["target"]
    assert listing(tmp_path / "target") == OLD


def test_a_failing_second_rename_moves_the_old_folder_back(tmp_path, listing, monkeypatch):
    make_old(tmp_path / "target")
    real, calls = os.replace, []

    def replace(source, destination):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(source, destination)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(ArtefactError, match="Input/output error"), atomic_folder(tmp_path / "target") as temp:
        (temp / "a").write_bytes(b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["target"]
    assert listing(tmp_path / "target") == OLD


def test_recover_leaves_a_live_writer_alone(tmp_path):
    with atomic_folder(tmp_path / "target") as temp:
        (temp / "a").write_bytes(b"1")
        recover(tmp_path)
        with atomic_folder(tmp_path / "target") as second:  # a rival of the same name
            (second / "a").write_bytes(b"2")
        assert (temp / "a").read_bytes() == b"1"
    assert (tmp_path / "target" / "a").read_bytes() == b"1", "the last to finish wins"


def test_recover_by_name_touches_no_other_name(tmp_path):
    other = tmp_path / f"other.tmp-{'0' * 32}"
    mine = tmp_path / f"mine.tmp-{'0' * 32}"
    for path in (other, mine, tmp_path / "mine.tmp-notes"):
        path.mkdir()
    recover(tmp_path, "mine")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.tmp-notes", other.name]


def test_a_folder_does_not_replace_a_file_or_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"keep")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(ArtefactError, match="a folder must go here"), atomic_folder(tmp_path / name):
            pytest.fail("must not be entered")
    assert (tmp_path / "file").read_bytes() == b"keep"


def test_too_little_space_is_refused_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "free_bytes", lambda folder: 999)
    with (
        pytest.raises(ArtefactError, match=r"1000 bytes needed, 999 bytes free.*nothing was changed"),
        atomic_folder(tmp_path / "target", needed=1000),
    ):
        pytest.fail("must not be entered")
    assert list(tmp_path.iterdir()) == []


LIMITED_WRITER = """
import resource, sys
from pathlib import Path
from worldrl.core.storage.atomic import atomic_folder, write_file
from worldrl.core.errors import WorldrlError
target = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_file(target / "file", b"x" * 10_000)
except WorldrlError as error:
    print(type(error).__name__, error)
try:
    with atomic_folder(target / "folder") as temp:
        (temp / "small").write_bytes(b"x")
        (temp / "large").write_bytes(b"x" * 10_000)
except WorldrlError as error:
    print(type(error).__name__, error)
"""


def test_a_write_that_fails_half_way_changes_nothing(tmp_path, child, listing):
    write_file(tmp_path / "file", b"old")
    make_old(tmp_path / "folder")
    lines = child(LIMITED_WRITER, tmp_path).stdout.splitlines()
    assert lines[0].startswith(f"RunDirectoryError {tmp_path / 'file'}: cannot be written: File too large (10000 bytes")
    assert lines[1].startswith(f"ArtefactError {tmp_path / 'folder'}: cannot be written: File too large")
    assert listing(tmp_path) == {"file": b"old"} | {f"folder/{k}": v for k, v in OLD.items()}


FULL_DISK_WRITER = """
import sys
from pathlib import Path
import torch
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.atomic import write_file
from worldrl.core.errors import WorldrlError
from worldrl.core import artefact
place = Path(sys.argv[1])
write_artefact(place / "model", kind="test", config={"n": 1}, tensors={"w": torch.zeros(1000)})
artefact.tensor_bytes = lambda *_: 0  # so that the disk runs full while writing, not in the estimate
attempts = [
    lambda: write_artefact(place / "model", kind="test", config={"n": 2}, tensors={"w": torch.zeros(10**6)}),
    lambda: write_file(place / "file", b"x" * 4 * 10**6),
]
for attempt in attempts:
    try:
        attempt()
    except WorldrlError as error:
        print(type(error).__name__, error)
print(read_artefact(place / "model", kind="test").config, sorted(p.name for p in place.iterdir()))
"""


def mounted(options: str, place: Path) -> tuple[str, ...]:
    """Prefix that runs a command where ``place`` is a small file system of its own; skips where that is forbidden."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "true"], check=False).returncode != 0:
        pytest.skip("needs user namespaces to mount a small disk")
    return ("unshare", "-Urm", "sh", "-c", f'mount -t tmpfs -o {options} none {place} && exec "$@"', "sh")


def test_a_full_disk_keeps_the_earlier_artefact(tmp_path, child):
    result = child(FULL_DISK_WRITER, tmp_path, prefix=mounted("size=1m", tmp_path))
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert lines[0].startswith("ArtefactError")
    assert "No space left on device" in lines[0]
    assert lines[1].startswith("RunDirectoryError")
    assert "4000000 bytes needed" in lines[1]
    assert lines[2] == "{'n': 1} ['model']"


READ_ONLY_WRITER = """
import sys
from pathlib import Path
from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.run import RunDirectory
try:
    RunDirectory.open(Path(sys.argv[1]) / "run", command="test", config={}, resume_command="")
except RunDirectoryError as error:
    print(error)
"""


def test_a_read_only_place_is_named(tmp_path, child):
    result = child(READ_ONLY_WRITER, tmp_path, prefix=mounted("ro", tmp_path))
    assert f"{tmp_path / 'run'}: cannot be written: Read-only file system" in result.stdout, result.stderr
    assert "choose a folder you may write to" in result.stdout


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_file(tmp_path / "file" / "inner", b"x")


def test_remove_folder(tmp_path):
    make_old(tmp_path / "target")
    remove_folder(tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
