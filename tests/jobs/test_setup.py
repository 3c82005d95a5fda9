"""Unit under test: ``worldrl setup``, without the network: what it runs, what it refuses, what it leaves behind."""

import json
import sys
from pathlib import Path

import pytest

import worldrl.jobs.environment.setup as setup
import worldrl.jobs.environment.setup_build as setup_build
from worldrl.cli import main
from worldrl.core.errors import SettingError, WorkerEnvironmentError, WorkerError
from worldrl.jobs.environment.doctor import Failure, check_environment
from worldrl.jobs.environment.setup import SetupSettings
from worldrl.policies.lerobot.release import RELEASES
from worldrl.simulators.environments import (
    LOCKS,
    RECORD,
    built_folder,
    environment_folder,
    find_environment,
    interpreter,
)
from worldrl.workers.libero.facts import PHYSICS, VERSION

(LIBERO,) = LOCKS["libero"]
OLD, NEW = LOCKS["lerobot"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def finish(cache):
    """An environment as setup leaves it before its check."""
    folder = environment_folder("libero")
    interpreter(folder).parent.mkdir(parents=True)
    interpreter(folder).touch()
    setup.remember(SetupSettings("libero"), folder)
    return folder


def test_the_lock_pins_exactly_and_holds_the_protocols_physics():
    pins = dict(line.split("==") for line in setup_build.pins(LIBERO))
    assert PHYSICS[VERSION].items() <= pins.items()
    assert not {"torch", "torchvision", "wandb", "opencv-python"} & pins.keys()


def test_steps_run_in_order_and_a_failure_names_step_and_log(cache, monkeypatch):
    steps = []
    monkeypatch.setattr(setup_build, "run_step", lambda title, command, log: steps.append((title, command)))
    setup_build.build("libero", LIBERO, "", environment_folder("libero"))
    assert [title[:3] for title, _ in steps] == ["1/4", "2/4", "3/4", "4/4"]
    assert "--no-deps" in steps[2][1]
    assert str(LIBERO.path) in steps[2][1]
    monkeypatch.undo()
    log = cache / "setup.log"
    with pytest.raises(WorkerEnvironmentError, match=r"step 3/4.*exit code 3.*no wheel.*setup\.log"):
        setup_build.run_step("3/4 packages", [sys.executable, "-c", "print('no wheel'); raise SystemExit(3)"], log)


def test_a_failed_step_shows_its_own_last_error(cache):
    log, said = cache / "setup.log", "print('ERROR: no {} wheel'); print('  Expected a'); raise SystemExit(1)"
    for name in ("first", "other"):
        with pytest.raises(WorkerEnvironmentError, match=f"ERROR: no {name} wheel; all of it"):
            setup_build.run_step("wheels", [sys.executable, "-c", said.format(name)], log)
    with pytest.raises(WorkerEnvironmentError, match=r"failed .exit code 3.: none at all; all of it"):
        setup_build.run_step("last", [sys.executable, "-c", "print('none at all'); raise SystemExit(3)"], log)


def test_an_unfinished_environment_is_none(cache):
    with pytest.raises(WorkerEnvironmentError, match="does not exist; build it with `worldrl setup libero`"):
        find_environment("libero")
    environment_folder("libero").mkdir(parents=True)
    with pytest.raises(WorkerEnvironmentError, match="is unfinished"):
        find_environment("libero")
    with pytest.raises(Failure) as caught:
        check_environment("libero")
    assert caught.value.fix == "worldrl setup libero"
    assert caught.value.detail.startswith("its environment "), "the line begins with the name already"


def test_doctor_trusts_the_check_and_not_the_record(cache, monkeypatch):
    """An environment without assets is no LIBERO, however completely it was built."""
    folder = finish(cache)
    monkeypatch.setattr(setup, "own_assets", lambda folder, known: str(cache))
    monkeypatch.setattr(setup, "pro_data", lambda folder: None)

    def lacks_assets(settings):
        raise WorkerError("LIBERO's assets are not there")

    monkeypatch.setattr(setup, "check_libero", lacks_assets)
    with pytest.raises(WorkerError):
        setup.ready(SetupSettings("libero"), LIBERO, folder)
    with pytest.raises(Failure, match="has not passed") as caught:
        check_environment("libero")
    assert caught.value.fix == "worldrl setup libero"
    monkeypatch.setattr(setup, "check_libero", lambda settings: {"assets": "0123"})
    setup.ready(SetupSettings("libero"), LIBERO, folder)
    assert check_environment("libero") == f"{folder}, assets {cache}"
    monkeypatch.setattr(setup, "check_libero", lacks_assets)  # they were there once, and are there no more
    with pytest.raises(WorkerError):
        setup.ready(SetupSettings("libero"), LIBERO, folder)
    with pytest.raises(Failure, match="has not passed"):
        check_environment("libero")


def test_assets_are_remembered_with_their_note(cache):
    folder = finish(cache)
    assets = cache / "assets"
    (assets / "scenes").mkdir(parents=True)
    setup.remember(SetupSettings("libero", assets=str(assets), assets_note="stand-in bowl"), folder)
    setup.remember(SetupSettings("libero"), folder)  # a later run without them forgets nothing
    setup.note_checked(folder, True)
    assert find_environment("libero").record["assets"] == str(assets)
    assert "stand-in bowl" in check_environment("libero")
    (assets / "scenes").rmdir()
    assets.rmdir()
    with pytest.raises(Failure, match="are gone"):
        check_environment("libero")


def test_a_note_stays_with_its_assets(cache):
    folder = finish(cache)
    for name, mesh in (("first", "bowl"), ("copy", "bowl"), ("other", "plate")):
        (cache / name / "scenes").mkdir(parents=True)
        (cache / name / "scenes" / "mesh.obj").write_text(mesh)
    for name, told, note in (("first", "stand-in", "stand-in"), ("other", "", ""), ("copy", "", "stand-in")):
        setup.remember(SetupSettings("libero", assets=str(cache / name), assets_note=told), folder)
        assert find_environment("libero").record["assets_note"] == note
    with pytest.raises(SettingError, match="assets_note: give the folder"):
        setup.main(SetupSettings("libero", run_dir=str(cache / "run"), assets_note="of what?"))


def test_a_record_of_another_version_is_refused(cache):
    folder = finish(cache)
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**record, "schema": 99}))
    with pytest.raises(WorkerEnvironmentError, match="another version"):
        find_environment("libero")


def test_bad_input(cache, capsys):
    assert main(["setup", "libreo", f"run_dir={cache / 'run'}"]) == 2
    assert "did you mean 'libero'" in capsys.readouterr().err
    with pytest.raises(SettingError, match="no folder 'scenes'"):
        setup.main(SetupSettings("libero", run_dir=str(cache / "run"), assets=str(cache)))
    with pytest.raises(WorkerEnvironmentError, match=r"needs Python 3\.11.*give\s+python="):
        setup_build.find_python("/no/such/python", LOCKS["libero"])
    with pytest.raises(WorkerEnvironmentError, match=r"needs Python 3\.11 or 3\.12, tried /no/such/python"):
        setup_build.find_python("/no/such/python", LOCKS["lerobot"])
    if sys.version_info[:2] == (3, 11):
        assert Path(setup_build.find_python("", LOCKS["libero"])[0]).exists()


def pretend(path, version):
    """An interpreter that says what its version is, and does nothing else."""
    path.write_text(f"#!/bin/sh\nprintf {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def lerobot(cache, monkeypatch):
    """``setup`` with interpreters of three versions, whose steps only make the folder that they promise."""

    def run_step(title, command, log):
        if "virtual environment" in title:
            interpreter(log.parent).parent.mkdir(parents=True)
            interpreter(log.parent).touch()

    monkeypatch.setattr(setup_build, "run_step", run_step)
    monkeypatch.setattr(setup, "check_lerobot", lambda settings, python: {"python": python})
    pythons = {version: pretend(cache / f"python{version}", version) for version in ("3.10", "3.11", "3.12")}
    return lambda version: setup.main(
        SetupSettings("lerobot", run_dir=str(cache / f"run{version}"), python=pythons.get(version, ""))
    )


def test_the_interpreter_decides_which_lerobot_is_built_and_the_last_setup_which_is_used(lerobot, monkeypatch):
    said = []
    monkeypatch.setattr(setup_build, "say", said.append)
    for version, lock, package in (
        ("3.11", OLD, "0.4.4"),
        ("3.12", NEW, "0.6.1"),
        ("3.11", OLD, None),
        ("3.12", NEW, None),
    ):
        found = lerobot(version)
        assert found["folder"] == str(built_folder(lock))
        assert find_environment("lerobot").folder == built_folder(lock)
        assert [f"lerobot=={package}," in line for line in said] == ([True] if package else [])
        said.clear()
    assert lerobot("")["folder"] == str(built_folder(NEW))  # without an interpreter: the one in use is checked
    with pytest.raises(WorkerEnvironmentError, match=r"needs Python 3\.11 or 3\.12, tried .*python3\.10"):
        lerobot("3.10")


def test_the_release_in_use_stays_the_wanted_one_where_its_environment_is_gone(lerobot):
    lerobot("3.11")
    lerobot("3.12")
    (built_folder(NEW) / RECORD).unlink()
    assert setup_build.wanted_lock("lerobot", "") == NEW


def test_a_lerobot_whose_check_fails_leaves_the_other_in_use(lerobot, monkeypatch):
    lerobot("3.11")

    def fails(settings, python):
        raise WorkerError("its policies cannot be imported")

    monkeypatch.setattr(setup, "check_lerobot", fails)
    with pytest.raises(WorkerError):
        lerobot("3.12")
    assert find_environment("lerobot").folder == built_folder(OLD)
    assert check_environment("lerobot") == str(built_folder(OLD))


def test_a_note_of_another_version_about_the_lock_in_use_is_refused(lerobot):
    lerobot("3.12")
    note = built_folder(NEW).parent / "lerobot.json"
    note.write_text(json.dumps({"schema": 1, "lock": "lerobot09"}))
    with pytest.raises(WorkerEnvironmentError, match=r"lerobot\.json: lock 'lerobot09' is of another version"):
        find_environment("lerobot")


@pytest.mark.parametrize(("lock", "lerobot"), [(OLD, "0.4.4"), (NEW, "0.6.1")])
def test_each_lock_of_lerobot_pins_a_release_that_is_served(lock, lerobot):
    pins = dict(line.split("==") for line in setup_build.pins(lock))
    assert pins["lerobot"] == lerobot
    assert lerobot in {line.tried for line in RELEASES}
    assert {"torch", "torchvision", "transformers", "diffusers", "safetensors"} <= pins.keys()
