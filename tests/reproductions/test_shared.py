"""Unit under test: ``worldrl.reproductions.stage_sharing``."""

import threading
from pathlib import Path

import pytest

from worldrl.reproductions.stage_sharing import shared


def stage(run: Path, name: str) -> Path:
    folder = run / "stages" / name
    folder.mkdir(parents=True)
    return folder


def test_made_once_and_the_other_waits(tmp_path: Path) -> None:
    began, may_end, calls = threading.Event(), threading.Event(), []

    def make(folder: Path) -> None:
        calls.append(folder)
        began.set()
        assert may_end.wait(10)
        (folder / "data").write_text("x")

    found: list[str] = []

    def ask(name: str) -> None:
        found.append((shared(stage(tmp_path, name), "data-seed-0", make) / "data").read_text())

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b")]
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    assert found == []  # the second has nothing before the first is done
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert found == ["x", "x"]
    assert calls == [tmp_path / "shared" / "data-seed-0"]


def test_what_was_killed_is_made_again_and_finds_what_it_left(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        (folder / "checkpoint").write_text("half")
        raise KeyboardInterrupt

    seen: list[str] = []
    place = stage(tmp_path, "a")
    with pytest.raises(KeyboardInterrupt):
        shared(place, "model", die)
    shared(place, "model", lambda folder: seen.append((folder / "checkpoint").read_text()))
    shared(place, "model", die)  # made: not called
    assert seen == ["half"]
