"""Unit under test: ``worldrl/runs/reading.py`` and ``worldrl/core/storage/below.py``: runs as they are, whatever lies there."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from worldrl.core.errors import GateError, RunDirectoryError
from worldrl.core.storage import log
from worldrl.core.storage.below import read_below
from worldrl.core.storage.run import RunDirectory
from worldrl.runs.listing import success_text
from worldrl.runs.reading import POINTS, State, find_runs, read_curves

RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.30, "hi": 0.95, "method": "wilson"}
PAIRED = {"n": 4, "both": 1, "only_a": 1, "only_b": 2, "neither": 0, "diff": 0.25, "lo": -0.4, "hi": 0.7, "p": 1.0}


def only(folder):
    (run,) = find_runs(folder)
    return run


def test_what_a_finished_run_says(folder, make_run):
    make_run("deep/er/one", metrics={"success": RATE, "mean_steps": 7.5, "policy": "x"}, rounds=3, tasks=["a", "b"])
    run = only(folder)
    assert (run.name, run.command, run.state, run.faults) == ("deep/er/one", "evaluate", State.finished, [])
    assert run.settings == {"rounds": "3", "tasks": "[a, b]"}
    assert run.success == {"success": RATE}
    assert run.numbers == {"mean_steps": 7.5}


def test_before_after_and_gain_of_both_kinds_of_result(folder, make_run):
    before, after = {**RATE, "k": 2, "rate": 0.5}, RATE
    make_run("a", command="compare", metrics={"before": before, "after": after, "paired": PAIRED})
    nested = {"before": {"success": before}, "after": {"success": after}, "comparison": {"paired": PAIRED}}
    make_run("b", command="train-vla", metrics=nested)
    for run in find_runs(folder):
        assert run.success == {"before": before, "after": after}
        assert run.gain == PAIRED


def test_sides_that_are_no_before_and_after_have_their_own_names(folder, make_run):
    sides = {"before": "alone", "after": "planned"}
    make_run("a", command="demo", metrics={"before": RATE, "after": RATE, "sides": sides})
    assert only(folder).success == {"alone": RATE, "planned": RATE}
    assert success_text(only(folder)).startswith("alone 75")
    make_run("b", command="demo", metrics={"before": RATE, "after": RATE, "sides": ["alone"]})
    assert {tuple(run.success) for run in find_runs(folder)} == {("alone", "planned"), ("before", "after")}


@pytest.mark.parametrize(
    "metrics",
    [{"success": {**RATE, "rate": 0.9}}, {"success": {**RATE, "hi": "x"}}, {"success": {"rate": []}}, {"success": RATE, "paired": 3}],
)  # fmt: skip
def test_a_rate_that_contradicts_itself_is_a_fault_and_not_shown(folder, make_run, metrics):
    make_run("one", metrics=metrics)
    run = only(folder)
    assert run.success == {}
    assert run.faults[0].startswith("result.json: ")


def test_a_run_that_fails_says_why_and_one_that_is_interrupted_is_stopped(folder):
    for name, error in (("a", GateError("gate: PSNR 9, needs 20")), ("b", KeyboardInterrupt())):
        with pytest.raises(type(error)):  # noqa: PT012, SIM117
            with RunDirectory.open(folder / name, command="train-vla", config={}, resume_command="x") as run:
                (run.path / "work").write_text("begun")
                raise error
    failed, stopped = sorted(find_runs(folder), key=lambda run: run.name)
    assert (failed.state, failed.clock.error) == (State.failed, "GateError: gate: PSNR 9, needs 20")
    assert (stopped.state, stopped.clock.error) == (State.stopped, "")
    with RunDirectory.open(folder / "a", command="train-vla", config={}, resume_command="x"):
        pass
    assert {run.state for run in find_runs(folder)} == {State.stopped}  # resumed since


def test_a_run_that_works_shows_how_far_it_is_and_is_not_disturbed(folder):
    with RunDirectory.open(folder / "one", command="collect", config={}, resume_command="x") as run:
        with log.Progress("outer", 2), log.Progress("inner", 9, unit="episodes") as progress:
            progress.advance(4)
            run.tick(force=True)
        run_now = only(folder)
        assert (run_now.state, run_now.clock.progress.description) == (State.running, "inner")
        assert (run_now.clock.progress.count, run_now.clock.progress.total) == (4, 9)
        with pytest.raises(RunDirectoryError, match="in use by process"):
            RunDirectory.open(folder / "one", command="collect", config={}, resume_command="x")
    assert only(folder).state is State.stopped
    assert log.current_progress() is None


def test_a_killed_run_is_stopped_and_another_process_of_its_number_is_none(folder):
    code = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from worldrl.core.storage.run import RunDirectory
        with RunDirectory.open(Path({str(folder / "one")!r}), command="collect", config={{}}, resume_command="x"):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert only(folder).state is State.stopped
    owner = json.loads((folder / "one" / "run.lock").read_text())
    (folder / "one" / "run.lock").write_text(json.dumps({**owner, "pid": os.getpid()}))
    assert only(folder).state is State.stopped


def test_a_run_of_another_machine_works_while_its_clock_is_written(folder, make_run):
    run = make_run("one")
    (run / "run.lock").write_text(json.dumps({"host": f"not-{socket.gethostname()}", "pid": 1}))
    assert only(folder).state is State.running
    os.utime(run / "run_clock.json", (1, 1))
    assert only(folder).state is State.stopped


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": NaN}', "\x00\xff", "a: &x [1]\nb: *x", "[" * 99_999])
@pytest.mark.parametrize("file", ["config.yaml", "result.json", "run_clock.json", "report.json", "run.lock"])
def test_no_file_ends_the_list(folder, make_run, file, content):
    run = make_run("one", metrics={"success": RATE})
    (run / "videos").mkdir()
    (run / "videos" / "01.mp4").write_bytes(b"x")
    (run / file).write_text(content, encoding="latin-1")
    found = only(folder)
    assert found.films[0].title == "01"
    assert (
        file == "run.lock"
        or (file, content[:1]) == ("config.yaml", "{")
        or any(file in fault for fault in found.faults)
    )
    assert found.state is (State.damaged if file == "result.json" else State.finished)


def test_files_of_absurd_size_pipes_and_links_are_faults(folder, make_run, tmp_path):
    (tmp_path / "secret").write_text('{"command": "x", "metrics": {"key": 1}}')
    for name in ("big", "pipe", "link"):
        make_run(name, metrics={}) if name != "pipe" else make_run(name)
    with open(folder / "big" / "config.yaml", "ab") as file:
        file.truncate(2**33)
    os.mkfifo(folder / "pipe" / "result.json")
    (folder / "link" / "result.json").unlink()
    (folder / "link" / "result.json").symlink_to(tmp_path / "secret")
    faults = {run.name: run.faults for run in find_runs(folder)}
    assert "8589934592 bytes" in faults["big"][0]
    assert "no regular file" in faults["pipe"][0]
    assert "links are not followed" in faults["link"][0]


def test_linked_folders_hidden_ones_and_insides_of_runs_are_no_runs(folder, make_run, tmp_path):
    make_run("one")
    make_run("one/stages/inner")
    make_run(".hidden")
    (folder / "linked").symlink_to(make_run("../outside"))
    assert only(folder).name == "one"
    with pytest.raises(RunDirectoryError, match="itself a run directory"):
        find_runs(folder / "one")
    with pytest.raises(RunDirectoryError, match="no folder"):
        find_runs(folder / "nothing")


def test_what_was_read_is_read_again_only_when_it_changed(folder, make_run):
    run, kept = make_run("one", metrics={"success": RATE}), {}
    first = find_runs(folder, kept)
    assert find_runs(folder, kept) == first
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "metrics": {}}))
    assert find_runs(folder, kept)[0].success == {}


def test_stages_and_films_with_the_titles_of_the_report(folder, make_run):
    run = make_run("one")
    for stage in ("01-a", "02-b"):
        (run / "stages" / stage).mkdir(parents=True)
    (run / "stages" / "01-a" / "stage.json").write_text("{}")
    (run / "videos").mkdir()
    for name in ("01.mp4", "extra.mp4", "x.txt"):
        (run / "videos" / name).write_bytes(b"x")
    (run / "videos" / "out.mp4").symlink_to("/etc/hostname")
    (run / "report.json").write_text(json.dumps({"data": {"videos": [{"title": "left real"}, 3]}}))
    found = only(folder)
    assert found.stages == ["01-a"]
    assert [(film.path, film.title) for film in found.films] == [
        ("videos/01.mp4", "left real"),
        ("videos/extra.mp4", "extra"),
    ]


def test_curves_are_thinned_and_lines_that_are_none_are_counted(folder, make_run, write_metrics):
    run = make_run("one")
    write_metrics(run, [{"loss": 1 / (k + 1), "none": None, "text": "x"} for k in range(1000)], tail='{"series": "clon')
    found = read_curves(folder, "one")
    assert found["curves"].keys() == {"cloning/loss"}
    points = found["curves"]["cloning/loss"]
    assert len(points) <= POINTS + 1
    assert (points[0], points[-1]) == ((0, 1.0), (999, 0.001))
    assert (found["unreadable"], found["cut"]) == (0, False)
    (run / "metrics.jsonl").write_text(
        'nonsense\n[]\n{"series": "a"}\n{"series": "a", "step": 1e999, "values": {"x": 1}}\n'
    )
    assert read_curves(folder, "one") == {"curves": {}, "unreadable": 4, "cut": False}


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/hostname", "", ".", "a//x", "a\0b", "no", "out/hostname", "folder"]
)
def test_names_lead_nowhere_else(tmp_path, name):
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (tmp_path / "x").write_text("secret")
    (root / "out").symlink_to("/etc")
    with pytest.raises(RunDirectoryError):
        read_below(root, name, 100)


def test_the_root_itself_may_be_a_link_and_the_end_of_a_large_file_is_read(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"abcdef")
    (tmp_path / "link").symlink_to("root")
    assert read_below(tmp_path / "link", "file", 100) == b"abcdef"
    assert read_below(tmp_path / "link", "file", 2, last=True) == b"ef"
    with pytest.raises(RunDirectoryError, match="6 bytes, more than the 2"):
        read_below(tmp_path / "link", "file", 2)
