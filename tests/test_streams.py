"""Streams that are closed, full or without UTF-8, and what the machine refuses: one line, never a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.table import Table

from worldrl import cli
from worldrl.cli import COMMANDS, USER_ERROR, main
from worldrl.core.errors import RunDirectoryError
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory
from worldrl.streams import MACHINE, machine_fault

ROOT = Path(__file__).parents[1]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'envs'}", "HOME": "/nowhere"}


def shell(line: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run ``worldrl`` with redirections, as only a shell makes them."""
    line = line.replace("worldrl", f"{sys.executable} -m worldrl")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={**ENV, **env}, timeout=120)


@pytest.mark.parametrize("command", ["train-vla", "align-world-model", "train-offline"])
def test_help_on_a_terminal_without_utf8(command: str) -> None:
    found = shell(f"worldrl {command} --help all", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (found.returncode, found.stderr) == (0, "")
    assert "\\xb1" in found.stdout or "\\u03b" in found.stdout


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("worldrl --help >&-", 0),
        ("worldrl --help 2>&-", 0),
        ("worldrl --help 2>/dev/full", 0),
        ("worldrl --version >&- 2>&- <&-", 0),
        ("worldrl nonsense 2>&-", 2),
        ("worldrl nonsense 2>/dev/full", 2),
        ("worldrl nonsense >/dev/full", 2),
        ("worldrl nonsense 2>&1 | true; exit ${PIPESTATUS[0]}", 2),
        ("worldrl prolong nonsense 2>/dev/full", 2),  # an old name is announced first
        ("worldrl --help >/dev/full", 2),  # what was asked for is lost
        ("worldrl config show collect >/dev/full", 2),
        ("worldrl config show collect | true; exit ${PIPESTATUS[0]}", 0),
        ("worldrl train-vla --help | head -c 10; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_closed_and_full_streams(line: str, code: int) -> None:
    found = shell(line)
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr
    assert found.returncode == code


def test_what_was_asked_for_and_is_lost_is_one_line() -> None:
    found = shell("worldrl --version >/dev/full")
    assert found.stderr.startswith("worldrl: standard output: No space left on device")
    assert found.stderr.count("\n") == 1


JOB = """
import logging, sys, warnings
from types import SimpleNamespace
from worldrl import cli
from worldrl.core.storage.log import Progress, console

def job(settings):
    clock = iter(range(0, 10**6, 100))
    with Progress("train", total=2000, clock=lambda: next(clock)) as progress:
        for _ in range(2000):  # more text than any buffer holds
            progress.advance(note="a note")
    console().print("finished")
    logging.getLogger("some library").warning("a warning")
    warnings.warn("another")
    sys.stderr.write("written by a library\\n" * 2000)
    open(sys.argv[1], "w").write("trained")

cli.Command.load = lambda self: (job, None)
cli.compose_command = lambda command, tokens: None
sys.exit(cli.main(["doctor"]))
"""


@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full", "2>&1 | true; exit ${PIPESTATUS[0]}", ">&- 2>&- <&-"])
def test_a_run_does_not_end_because_nobody_reads_its_progress(tmp_path: Path, end: str) -> None:
    (tmp_path / "job.py").write_text(JOB)
    found = shell(f"{sys.executable} {tmp_path}/job.py {tmp_path}/result {end}")
    assert found.returncode == 0
    assert (tmp_path / "result").read_text() == "trained"


def test_progress_that_is_read_arrives_whole(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    said = shell(f"{sys.executable} {tmp_path}/job.py {tmp_path}/result").stderr
    assert said.count("written by a library\n") == 2000
    assert said.count(", a note\n") == 2000
    for words in ("train: 2000/2000 steps", "finished\n", "a warning\n", "UserWarning: another"):
        assert words in said


NEXT = """
import os, sys
from worldrl.streams import open_streams
open_streams()
with open(sys.argv[1], "w"):
    os.write(1, b"printed in C")
    os.write(2, b"printed in C")
"""


def test_what_is_opened_next_does_not_get_what_is_printed(tmp_path: Path) -> None:
    """A closed descriptor is the next one that the system gives."""
    (tmp_path / "next.py").write_text(NEXT)
    assert shell(f"{sys.executable} {tmp_path}/next.py {tmp_path}/file >&- 2>&-").returncode == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("number", sorted(MACHINE))
def test_what_the_machine_refuses_is_one_line(number: int, monkeypatch, capsys) -> None:
    def refuse(settings: object) -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(cli.Command, "load", lambda self: (refuse, COMMANDS["doctor"].__class__))
    monkeypatch.setattr(cli, "compose_command", lambda command, tokens: None)
    assert cli.main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("worldrl: some/file: ")
    assert said.count("\n") == 1


def test_bugs_keep_their_traceback() -> None:
    assert machine_fault(OSError(errno.EBADF, "x")) is None
    assert machine_fault(ValueError("x")) is None
    assert machine_fault(RuntimeError("shapes differ")) is None
    assert "too little memory" in str(machine_fault(MemoryError()))


def test_torchs_own_words_for_lost_memory_are_one_line() -> None:
    """``training.batch_size=1000000000`` ended in a traceback: torch's allocator on CPUs has a plain RuntimeError."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert "too little memory" in str(machine_fault(caught.value))
    assert "too little memory" in str(machine_fault(torch.OutOfMemoryError("CUDA out of memory")))
    assert "too little memory" in str(machine_fault(ImportError("a.so: failed to map segment from shared object")))
    assert machine_fault(ImportError("no module named x")) is None


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.ENOSPC, "full"), RunDirectoryError("refused")])
def test_a_command_that_failed_frees_its_run_directory(tmp_path: Path, error: Exception) -> None:
    def begin(config: dict[str, int]) -> RunDirectory:
        return RunDirectory.open(tmp_path / "run", command="collect", config=config, resume_command="x")

    with pytest.raises(type(error)), begin({"a": 1}):
        raise error
    with begin({"a": 2}) as run:
        (run.path / "work").write_text("something")
    with pytest.raises(RunDirectoryError, match="another config: a: 2 -> 3"):
        begin({"a": 3})


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.yaml", "", "holds no settings"),
        ("config.yaml", "- 1\n- 2\n", "holds no settings"),
        ("config.yaml", "a: [", "damaged"),
        ("config.yaml", "[" * 20_000, "damaged"),
        ("config.yaml", "a: 2026-13-45\n", "damaged"),
        (
            "config.yaml",
            "a: &a [x, x]\n"
            + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(40)),
            "by reference",
        ),
        ("run_clock.json", '{"wall_s": "long"}', "run_clock.json: damaged; delete it: wall_s"),
        ("run_clock.json", '{"command": 5}', "run_clock.json: damaged; delete it: command"),
        ("run_clock.json", "[]", "expected a JSON object"),
        ("run_clock.json", '{"schema": 1, "command": "train-vla"}', "was begun by 'train-vla'"),
    ],
)
def test_damaged_run_directories_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    with RunDirectory.open(tmp_path, command="collect", config={"a": 1}, resume_command="x") as run:
        run.stage("01-data").finish({})
    (tmp_path / file).write_text(content)
    with pytest.raises(RunDirectoryError, match=words):
        RunDirectory.open(tmp_path, command="collect", config={"b": 2}, resume_command="x")


def test_a_stage_without_a_summary_is_named(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, command="collect", config={}, resume_command="x") as run:
        stage = run.stage("01-data")
        stage.finish({"n": 1})
        (stage.folder / "stage.json").write_text('{"schema": 1}')
        with pytest.raises(RunDirectoryError, match=r"stage\.json: holds no summary"):
            stage.summary  # noqa: B018


def test_names_of_strangers_steer_no_terminal(tmp_path: Path, capsys) -> None:
    """An escape sequence in a name of a file or a task moved the cursor and coloured the terminal."""
    assert main(["train-policy", "data=[\x1b[2J\u202egone]", f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    assert "\\x1b[2J\\u202egone: there is no dataset folder" in capsys.readouterr().err
    console.cache_clear()
    try:
        table = Table("task")
        table.add_row("a\x1b]0;b\x07 \u200d")
        console().print(table, "plain\x1b[2J", "ক্‍ষ", markup=False)
    finally:
        console.cache_clear()
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said
    assert all(part in said for part in ("a\\x1b]", "plain\\x1b[2J", "ক্‍ষ"))


def test_a_text_with_a_null_character_is_refused(tmp_path: Path, capsys) -> None:
    assert main(["collect", "preset=tiny", f"run_dir={tmp_path}/a\0b"]) == USER_ERROR
    assert "holds a null character" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["imagine world_model={0}", "evaluate-world-model world_model={0}", "train-vla start={0}", "align-world-model start={0}"]
)  # fmt: skip
def test_an_artefact_of_another_kind_is_refused_by_kind(line: str, tmp_path: Path, tiny_policy, capsys) -> None:
    """Their configs were read before their kind was asked: KeyError."""
    tiny_policy().save(tmp_path / "policy")
    assert main([*line.format(tmp_path / "policy").split(), "preset=tiny", f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    assert "holds a 'policy', expected a 'video-world-model'" in capsys.readouterr().err
