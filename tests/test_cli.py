"""Unit under test: ``worldrl.cli``, through its real entry point and through subprocesses."""

import os
import signal
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from worldrl import __version__
from worldrl.cli import COMMANDS, default_run_dir, main
from worldrl.core.errors import ArtefactError, GateError
from worldrl.settings import COMMAND_LINE, resume_command, setting
from worldrl.usage import describe

FAKE_JOB = """
import sys, time, types
from dataclasses import dataclass
from worldrl import cli

@dataclass
class DoctorSettings:
    run_dir: str = ""
    steps: int = 1

def job(settings):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    BODY

module = types.ModuleType("worldrl.jobs.environment.doctor")
module.main, module.DoctorSettings = job, DoctorSettings
sys.modules["worldrl.jobs.environment.doctor"] = module
sys.exit(cli.main(sys.argv[1:]))
"""


@dataclass
class DoctorSettings:
    """A made-up job's settings."""

    run_dir: str = setting("", "where")
    steps: int = setting(1, "how many")


class FakeJob(types.ModuleType):
    """Stands in for ``worldrl.jobs.environment.doctor``; keeps what it was given."""

    DoctorSettings = DoctorSettings

    def __init__(self) -> None:
        super().__init__("worldrl.jobs.environment.doctor")
        self.seen: list[DoctorSettings] = []
        self.raises: BaseException | None = None
        self.resume = ""

    def main(self, settings: DoctorSettings) -> dict[str, object]:
        self.seen.append(settings)
        self.resume = resume_command("doctor")
        if self.raises is not None:
            raise self.raises
        return {}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    fake = FakeJob()
    monkeypatch.setitem(sys.modules, "worldrl.jobs.environment.doctor", fake)
    return fake


# --- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_general_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for command in COMMANDS.values():
        assert f"  {command.name} " in text
        assert command.summary in text
    for promise in ("exit codes", "runs/COMMAND", "130 interrupted", "config show"):
        assert promise in text


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_explains_every_setting(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help", "all"]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    for row in describe(COMMANDS[command].load()[1]):
        assert row.key in lines
        assert row.type_text in lines[row.key]
        assert row.meaning, f"{command}: setting {row.key} has no meaning; declare it with setting(default, meaning)"
        assert row.key == "preset" or row.meaning in lines[row.key]
        assert "`" not in row.meaning, f"{command}: {row.key}: markup is for docstrings, not for a terminal"
    assert f"worldrl {command}" in text.partition("examples:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_table_matches_the_job(command: str) -> None:
    job, schema = COMMANDS[command].load()
    assert callable(job)
    assert schema.__name__ == COMMANDS[command].settings_class


@pytest.mark.parametrize(("command", "example"), [(c.name, e) for c in COMMANDS.values() for e in c.examples])
def test_example_of_help_composes(command: str, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["config", "show", command, *example.split()])
    assert code == 0, capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"worldrl {__version__}\n"


# --- running -------------------------------------------------------------------------------------------------------


def test_job_gets_typed_settings_and_its_run_directory(job: FakeJob) -> None:
    assert main(["doctor", "run_dir=here", "steps=3"]) == 0
    assert job.seen == [DoctorSettings("here", 3)]
    assert job.resume == "worldrl doctor run_dir=here steps=3"


def test_same_line_same_directory_other_line_other_directory(job: FakeJob) -> None:
    lines = (["doctor"], ["doctor"], ["doctor", "preset=tiny"], ["doctor", "steps=2"], ["doctor", "steps=3"])
    for line in lines:
        main(line)
    first, again, tiny, two, three = [settings.run_dir for settings in job.seen]
    assert first == again == "runs/doctor"
    assert tiny == "runs/doctor-tiny"
    assert len({first, tiny, two, three}) == 4


def test_default_run_dir_ignores_the_order_of_settings() -> None:
    one = default_run_dir("collect", {"seed": "1", "preset": "gpu", "x": "2"})
    assert one == default_run_dir("collect", {"x": "2", "seed": "1", "preset": "gpu"})
    assert one.startswith("runs/collect-gpu-")
    assert one == default_run_dir("collect", {"x": "2", "seed": "1", "preset": "gpu", "workers": "4"})  # the same run
    # Two settings are never confused with one whose text holds the other.
    assert default_run_dir("a", {"b": "1", "c": "2"}) != default_run_dir("a", {"b": "1c=2"})


def test_config_show_runs_nothing(job: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "doctor", "steps=4"]) == 0
    assert "steps: 4" in capsys.readouterr().out
    assert job.seen == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docter"], "unknown command 'docter'; did you mean 'doctor'?"),
        (["doctor", "stepz=1"], "doctor has no setting 'stepz'; did you mean 'steps'?"),
        (["doctor", "steps=x"], "steps must be int, got 'x'"),
        (["config", "doctor"], "worldrl config show COMMAND"),
        (["config", "show", "docter"], "did you mean 'doctor'?"),
    ],
)
def test_user_error_is_one_line_and_exit_2(
    job: FakeJob, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ArtefactError("policy: missing"), 2, "worldrl: policy: missing\n"),
        (GateError("recall 0.4, needs 0.8"), 3, "worldrl: gate failed: recall 0.4, needs 0.8\n"),
        (KeyboardInterrupt(), 130, "the run is in r; continue with: worldrl doctor 'run_dir=r' 'steps=2'"),
    ],
)
def test_exit_codes(
    job: FakeJob, error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job.raises = error
    assert main(["doctor", "run_dir=r", "steps=2"]) == code
    assert text.replace("'", "") in capsys.readouterr().err


def test_bug_keeps_its_traceback(job: FakeJob) -> None:
    job.raises = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


@pytest.mark.parametrize("name", ["worldrl.jobs.nothing", "torch.nothing", None])
def test_a_missing_module_of_our_own_or_of_a_package_that_is_there_keeps_its_traceback(
    job: FakeJob, name: str | None
) -> None:
    job.raises = ModuleNotFoundError("no such module", name=name)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "worldrl train-idm seed=1"),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            "torchrun --nproc-per-node 2 --module worldrl train-idm seed=1",
        ),
        (
            {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            "torchrun --nnodes 2 --nproc-per-node 8 --module worldrl train-idm seed=1",
        ),
    ],
)
def test_the_command_that_resumes_names_the_launcher(
    sizes: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    COMMAND_LINE.set(("train-idm", "seed=1"))
    assert resume_command("train-idm") == expected


# --- real processes ------------------------------------------------------------------------------------------------


def spawn(tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "job.py"
    script.write_text(FAKE_JOB.replace("BODY", body))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], stdout=pipe, stderr=pipe, text=True, cwd=tmp_path
    )


def test_ctrl_c_tells_where_the_run_is_and_how_to_resume(tmp_path: Path) -> None:
    child = spawn(tmp_path, "time.sleep(60)", "doctor", "run_dir=my run", "steps=2")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=180)
    assert child.returncode == 130
    assert err.strip() == (
        "worldrl: interrupted; the run is in my run; continue with: worldrl doctor 'run_dir=my run' steps=2"
    )


def test_bug_exits_1_with_traceback(tmp_path: Path) -> None:
    _, err = spawn(tmp_path, "raise ZeroDivisionError('boom')", "doctor").communicate(timeout=180)
    assert "Traceback" in err
    assert "boom" in err


@pytest.mark.parametrize(
    ("package", "arguments"), [("torch", ["train-vla", "--help"]), ("torch", ["train-vla"]), ("yaml", ["doctor"])]
)
def test_a_missing_package_is_one_line_that_names_it_and_what_brings_it(
    tmp_path: Path, package: str, arguments: list[str]
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError('no {package} here', name={package!r})")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    call = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": paths}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-m", "worldrl", *arguments], check=False, **call)
    assert done.returncode == 2
    assert done.stderr == (
        f"worldrl: {package} is not installed for {sys.executable}; install worldrl's packages with: pip install -c constraints.txt -e .\n"
    )
    assert done.stdout == ""
    assert subprocess.run([sys.executable, "-m", "worldrl", "--help"], check=False, **call).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [package]


def test_installed_command_answers_from_another_directory(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("worldrl")
    out = subprocess.run([script, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert out == f"worldrl {__version__}\n"
