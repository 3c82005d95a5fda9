"""Seconds of work that is killed and continues."""

from types import SimpleNamespace

from worldrl.core.storage import stopwatch
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.stopwatch import Stopwatch


def test_marks_are_written_once_a_second_and_added_up(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(stopwatch.time, "process_time", lambda: clock.now / 4)
    file, told = tmp_path / "spent.json", []
    watch = Stopwatch(file)
    for seconds in (0.5, 0.75, 0.5, 2.0):
        clock.now += seconds
        watch.mark()
        told.append(read_json(file)["seconds"] if file.exists() else None)
    assert told == [None, 1.25, 1.25, 3.75]
    clock.now += 0.25
    watch.mark(now=True)
    assert read_json(file) == {"seconds": 4.0, "cpu_seconds": 1.0}
    clock.now += 100.0  # between the kill and the new beginning
    again = Stopwatch(file)
    clock.now += 2.0
    again.mark()
    assert read_json(file) == {"seconds": 6.0, "cpu_seconds": 1.5}
