"""Unit under test: ``worldrl.jobs.environment.doctor``."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from worldrl.core.errors import SettingError, WorldrlError
from worldrl.core.storage.artefact import write_artefact
from worldrl.jobs.environment import doctor
from worldrl.jobs.environment.doctor import DoctorSettings, Failure, examine, main
from worldrl.simulators.environments import NAMES

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_healthy_machine_passes_every_required_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "bundled_weights", list)
    metrics = main(DoctorSettings(run_dir=str(tmp_path / "run")))
    required = {name for name, finding in metrics.items() if finding["required"]}
    assert required == {"python", "torch", "render", "video", "run_dir", "weights"}
    assert all(metrics[name]["passed"] for name in required)
    assert len(capsys.readouterr().out.splitlines()) == len(metrics)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["command"] == "doctor"
    assert result["metrics"] == metrics


def test_doctor_examines_again_on_a_second_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "bundled_weights", list)
    monkeypatch.setattr(doctor, "check_render", lambda timeout_s: "fine")
    settings = DoctorSettings(run_dir=str(tmp_path / "run"))
    main(settings)
    monkeypatch.setattr(doctor, "check_render", _broken)
    with pytest.raises(WorldrlError, match="required checks failed: render;"):
        main(settings)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["render"] == {"required": True, "passed": False, "detail": "no GL", "fix": "install GL"}


def _broken(timeout_s: float) -> str:
    raise Failure("no GL", "install GL")


def test_unwritable_run_dir_still_prints_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorldrlError, match="run_dir"):
        main(DoctorSettings(run_dir=str(tmp_path / "file" / "run")))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 + len(NAMES)
    assert any(line.startswith("FAIL run_dir") and "run_dir=/a/writable/folder" in line for line in lines)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; time.sleep(60)", "no image within 0.5 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("raise SystemExit('the rendered image is blank')", "the rendered image is blank"),
        ("raise ImportError('libEGL.so.1 not found')", "ImportError: libEGL.so.1 not found"),
    ],
)
def test_broken_renderer_is_named_with_the_command_that_mends_it(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(doctor, "RENDER_PROGRAM", program)
    with pytest.raises(Failure) as caught:
        doctor.check_render(0.5 if "sleep" in program else 60)
    assert caught.value.detail == f"egl: {reason}"
    assert "libegl1" in caught.value.fix


def test_second_back_end_is_tried_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor, "RENDER_PROGRAM", "import os; raise SystemExit(os.environ['MUJOCO_GL'] == 'egl')")
    assert "renders with osmesa; set MUJOCO_GL=osmesa" in doctor.check_render(60)


def test_damaged_weights_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "policy"
    write_artefact(folder, kind="policy", config={"width": 1}, tensors={"weight": torch.zeros(64)})
    monkeypatch.setattr(doctor, "bundled_weights", lambda: [folder])
    assert doctor.check_weights() == "policy"
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    finding = examine("weights", True, doctor.check_weights)
    assert not finding.passed
    assert "model.safetensors" in finding.detail


def test_scarce_machine_gets_notes(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"GB free, 1e\+09 wanted"):
        doctor.check_disk(tmp_path / "not" / "yet", 1e9)
    with pytest.raises(Failure, match=r"GB available, 1e\+09 wanted"):
        doctor.check_memory(1e9)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(("large", "pages"), [(False, "small"), (True, "large")])
def test_memory_names_the_size_of_its_pages(large: bool, pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_large_pages", lambda: large)
    assert doctor.check_memory(0.0).endswith(f"in {pages} pages")


def test_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    with pytest.raises(Failure) as caught:
        doctor.check_extras()
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"].keys() - {"dev"}
    assert caught.value.detail == f"not installed: {', '.join(dict.fromkeys(doctor.EXTRAS.values()))}"
    assert set(doctor.EXTRAS.values()) == extras
    assert (
        caught.value.fix
        == "pip install -c constraints.txt -e '.[sb3,offline,serve,play,warp,timm,hub,ray,wandb,rerun,wan]'"
    )


def test_unexpected_exception_is_a_finding_not_a_crash() -> None:
    def check() -> str:
        raise ZeroDivisionError("boom")

    finding = examine("odd", False, check)
    assert (finding.passed, finding.detail) == (False, "ZeroDivisionError: boom")
    assert finding.line().startswith("note odd")


@pytest.mark.parametrize("name", ["render_timeout_s", "min_disk_gb", "min_memory_gb"])
def test_settings_are_checked(name: str) -> None:
    with pytest.raises(SettingError, match=name):
        DoctorSettings(**{name: 0})
