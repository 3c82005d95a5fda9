"""Unit under test: ``worldrl setup``, without the network: what it runs, what it refuses, what it leaves behind."""

import json
import sys
from pathlib import Path

import pytest

import worldrl.jobs.setup as setup
import worldrl.jobs.setup_build as setup_build
from worldrl.cli import main
from worldrl.core.errors import SettingError, WorkerEnvironmentError, WorkerError
from worldrl.jobs.doctor import Failure, check_environment
from worldrl.jobs.setup import SetupSettings
from worldrl.rollout.environments import RECORD, environment_folder, find_environment, interpreter, lock_file
from worldrl.workers.libero_facts import PHYSICS, VERSION


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
    lines = [line for line in lock_file("libero").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert PHYSICS[VERSION].items() <= pins.items()
    assert not {"torch", "torchvision", "wandb", "opencv-python"} & pins.keys()


def test_steps_run_in_order_and_a_failure_names_step_and_log(cache, monkeypatch):
    steps = []
    monkeypatch.setattr(setup_build, "run_step", lambda title, command, log: steps.append((title, command)))
    setup_build.build("libero", "", environment_folder("libero"))
    assert [title[:3] for title, _ in steps] == ["1/4", "2/4", "3/4", "4/4"]
    assert "--no-deps" in steps[2][1]
    assert str(lock_file("libero")) in steps[2][1]
    monkeypatch.undo()
    log = cache / "setup.log"
    with pytest.raises(WorkerEnvironmentError, match=r"step 3/4.*exit code 3.*no wheel.*setup\.log"):
        setup_build.run_step("3/4 packages", [sys.executable, "-c", "print('no wheel'); raise SystemExit(3)"], log)


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


def test_doctor_believes_the_check_and_not_the_record(cache, monkeypatch):
    """The wheel brings no assets: an environment without any is no LIBERO, however completely it was built."""
    folder = finish(cache)

    def lacks_assets(settings):
        raise WorkerError("LIBERO's assets are not there")

    monkeypatch.setattr(setup, "check_libero", lacks_assets)
    with pytest.raises(WorkerError):
        setup.ready(SetupSettings("libero"), folder)
    with pytest.raises(Failure, match="has not passed") as caught:
        check_environment("libero")
    assert caught.value.fix == "worldrl setup libero assets=FOLDER"
    monkeypatch.setattr(setup, "check_libero", lambda settings: {"assets": "0123"})
    setup.ready(SetupSettings("libero"), folder)
    assert check_environment("libero") == f"{folder}, assets of its package"
    monkeypatch.setattr(setup, "check_libero", lacks_assets)  # they were there once, and are there no more
    with pytest.raises(WorkerError):
        setup.ready(SetupSettings("libero"), folder)
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


def test_a_note_stays_with_the_assets_it_was_told_of(cache):
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
        setup_build.find_python("/no/such/python")
    if sys.version_info[:2] == (3, 11):
        assert Path(setup_build.find_python("")).exists()
