"""Units under test: ``worldrl setup robotwin|isaac``, which check a user's own environment, and what the doctor says of it."""

import sys
from pathlib import Path

import pytest

import worldrl.jobs.environment.setup_adopt as setup_adopt
from worldrl.cli import main
from worldrl.core.errors import SettingError, WorkerEnvironmentError
from worldrl.jobs.benchmark.benchmark import BenchmarkSettings
from worldrl.jobs.benchmark.benchmark import main as benchmark
from worldrl.jobs.environment.doctor import Failure, check_environment
from worldrl.rollout.suites.names import FAMILIES
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Workers
from worldrl.simulators.environments import environment_folder, find_environment
from worldrl.workers.isaac import facts as isaac_facts
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.link.boot import load_file
from worldrl.workers.maniskill import facts as maniskill_facts
from worldrl.workers.robotwin import facts as robotwin_facts

make_checkout = load_file("robotwin_double", Path(__file__).parents[1] / "workers" / "robotwin_double.py").make_checkout


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_everything_that_is_missing_is_said_at_once_with_exit_code_2(cache, capsys):
    assert main(["setup", "robotwin", f"run_dir={cache / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "python=" in said
    assert "git clone https://github.com/RoboTwin-Platform/RoboTwin" in said
    assert main(["setup", "isaac", f"run_dir={cache / 'run2'}", f"python={sys.executable}"]) == 2
    said = capsys.readouterr().err
    assert f"packages of {sys.executable}: isaaclab, isaacsim" in said
    assert "pip install" in said


def test_a_checkout_without_its_assets_or_of_another_kind_is_refused(cache):
    root = make_checkout(cache / "RoboTwin")
    assert setup_adopt.lacking_checkout(str(root)) == []
    (root / "assets/objects/.keep").unlink()
    (root / "assets/objects").rmdir()
    assert "assets/objects" in setup_adopt.lacking_checkout(str(root))[0]
    assert "_download_assets.sh" in setup_adopt.lacking_checkout(str(root))[0]
    assert robotwin_facts.NEEDED[0] in setup_adopt.lacking_checkout(str(cache))[0]
    with pytest.raises(WorkerEnvironmentError, match="python=/no/such does not run"):
        setup_adopt.modules_of("/no/such", ["yaml"])


def test_an_adopted_environment_is_found_and_its_checkout_watched(cache, monkeypatch):
    root = make_checkout(cache / "RoboTwin")
    monkeypatch.setitem(setup_adopt.MODULES, "robotwin", ("yaml", "numpy"))
    with pytest.raises(Failure) as caught:
        check_environment("robotwin")
    assert caught.value.fix == "worldrl setup robotwin"
    found = setup_adopt.adopt(
        "robotwin", python=sys.executable, checkout=str(root), folder=environment_folder("robotwin")
    )
    assert set(found["versions"]) == {"yaml", "numpy"}
    assert find_environment("robotwin").python == str(Path(sys.executable).absolute())
    assert "never run against the real one" in check_environment("robotwin")
    asked = Workers(("head",), 0, workers=2, slots=4, restarts=2, recycle_after=50)
    worker_config = find_suite("robotwin_clean").worker_config(asked)
    assert worker_config.pool == {
        "workers": 2,
        "slots": 2,
        "restarts": 2,
        "recycle_after": 50,
        "images": None,
    }  # one environment per process
    assert worker_config.launch.options["checkout"] == str(root)
    (root / robotwin_facts.NEEDED[0]).unlink()
    with pytest.raises(Failure, match=r"_base_task\.py"):
        check_environment("robotwin")


def test_suites_have_one_family_and_the_camera_that_policies_see(cache):
    given = {
        "libero": libero_facts.suite_names(),
        "maniskill": maniskill_facts.SUITES,
        "robotwin": robotwin_facts.CONFIGS,
        "isaac": isaac_facts.SUITES,
    }
    assert {family: tuple(names) for family, names in given.items()} == FAMILIES
    assert all(find_suite(name).family == family for family, names in FAMILIES.items() for name in names)
    assert find_suite("robotwin_clean").main_camera == "head"
    assert find_suite("isaac_stack").main_camera == find_suite("maniskill").main_camera == "scene"
    with pytest.raises(SettingError, match="no scripted expert that acts step by step"):
        benchmark(BenchmarkSettings(policy="expert", suite="isaac_lift", run_dir=str(cache / "bench")))
    assert main(["benchmark", "suite=maniskill", "policy=expert", f"run_dir={cache / 'b'}"]) == 2
