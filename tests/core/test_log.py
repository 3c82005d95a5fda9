import json
import math
import multiprocessing

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage import log
from worldrl.core.storage.log import MetricLog, Progress, TrackerName, console, in_worker, read_metrics


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(folder, series):
    return [line["step"] for line in read_metrics(folder) if line["series"] == series]


def test_values_are_exact_and_non_finite_ones_null(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        metrics.write("policy", 3, {"loss": torch.tensor(0.1), "exact": 0.1 + 0.2, "bad": math.nan})
    assert read_metrics(tmp_path) == [
        {"series": "policy", "step": 3, "values": {"loss": float(torch.tensor(0.1)), "exact": 0.1 + 0.2, "bad": None}}
    ]


def test_truncate_gives_one_line_per_series_and_step(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        for step in range(10):
            for series in ("policy", "policy/val", "policy2"):
                metrics.write(series, step, {"loss": step})
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        metrics.truncate("policy", 6)
        for step in range(6, 12):
            metrics.write("policy", step, {"loss": -step})
    assert steps(tmp_path, "policy") == list(range(12))
    assert steps(tmp_path, "policy/val") == list(range(6))
    assert steps(tmp_path, "policy2") == list(range(10))
    assert [line["values"]["loss"] for line in read_metrics(tmp_path) if line["series"] == "policy"][6:] == [
        -6, -7, -8, -9, -10, -11,
    ]  # fmt: skip


def test_a_half_written_last_line_is_dropped(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        metrics.write("a", 0, {"x": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"series": "a", "st')
    assert steps(tmp_path, "a") == [0]
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        metrics.write("a", 1, {"x": 2})
    assert steps(tmp_path, "a") == [0, 1]


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("garbage\n")
    with pytest.raises(RunDirectoryError, match=r"metrics.jsonl: not valid JSON"):
        read_metrics(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"metrics.jsonl: not valid JSON"):
        MetricLog(tmp_path)


def test_no_file_is_no_metrics(tmp_path):
    assert read_metrics(tmp_path) == []


def test_tensorboard_shows_the_resumed_curve(tmp_path):
    with MetricLog(tmp_path) as metrics:
        for step in range(10):
            metrics.write("policy", step, {"loss": step, "bad": math.nan})
    with MetricLog(tmp_path) as metrics:
        metrics.truncate("policy", 6)
        for step in range(6, 8):
            metrics.write("policy", step, {"loss": -step})
    events = EventAccumulator(str(tmp_path / "tensorboard" / "policy"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(s, s if s < 6 else -s) for s in range(8)]


@pytest.fixture
def said(monkeypatch):
    """Replace the console by one without a terminal, and collect what it says."""
    plain = Console(stderr=True, force_terminal=False, width=40)
    monkeypatch.setattr(log, "console", lambda: plain)
    return lambda capsys: capsys.readouterr().err.splitlines()


def test_progress_without_a_terminal(said, capsys):
    clock = Clock()
    with Progress("collect [x]", 1000, start=100, unit="episodes", clock=clock) as progress:
        for _ in range(125):
            clock.now += 1
            progress.advance(note="loss 1")
    assert said(capsys) == [
        "collect [x]: 102/1000 episodes, 1/s, 0:14:58 left, loss 1",
        "collect [x]: 162/1000 episodes, 1/s, 0:13:58 left, loss 1",
        "collect [x]: 222/1000 episodes, 1/s, 0:12:58 left, loss 1",
        "collect [x]: 225/1000 episodes, 1/s, 0:12:55 left, finished after 0:02:05",
    ]


def test_short_work_is_silent_and_a_failure_is_reported(said, capsys):
    clock = Clock()
    with Progress("quick", 3, clock=clock) as progress:
        progress.advance(3)
    assert said(capsys) == []

    def fail() -> None:
        with Progress("slow", 3, clock=clock):
            clock.now += 5
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert said(capsys) == ["slow: 0/3 steps, 0/s, stopped by KeyError after 0:00:05"]


def test_progress_on_a_terminal_is_a_bar_also_nested(monkeypatch, capsys):
    terminal = Console(stderr=True, force_terminal=True, width=100)
    monkeypatch.setattr(log, "console", lambda: terminal)
    log._bars.cache_clear()
    try:
        with Progress("outer", 2) as outer, Progress("inner", 5) as inner:
            inner.advance(5)
            outer.advance()
            log._bars().refresh()
            text = capsys.readouterr().err
        assert "outer" in text
        assert "1/2" in text
        assert "5/5" in text
        assert not log._bars().task_ids
    finally:
        log._bars.cache_clear()


def _worker(queue):
    with Progress("worker", 1) as progress:
        queue.put((in_worker(), progress._silent))


def test_workers_are_silent(monkeypatch):
    assert not in_worker()
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_worker, args=(queue,))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process.start()
    assert queue.get() == (True, True)
    process.join()
    process.close()
    queue.close()
    monkeypatch.setenv("WORLDRL_WORKER", "1")
    assert in_worker()


def test_console_is_shared_and_speaks_to_stderr(capsys):
    assert console() is console()
    console().print("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\n"


def test_lines_are_readable_while_the_run_continues(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as metrics:
        metrics.write("a", 0, {"x": 1})
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 0
