"""Trackers get every point of ``metrics.jsonl`` once; wandb and trackio stand as fakes with the calls that are used."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from worldrl.cli import default_run_dir, main
from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics

ROOT = Path(__file__).parents[2]
SERVICES = (TrackerName.wandb, TrackerName.trackio)


class Service(ModuleType):
    """Keeps what it receives, as both services do."""

    def __init__(self) -> None:
        super().__init__("service")
        self.points: list[tuple[str, int, float]] = []
        self.given: list[dict] = []
        self.axes: dict[str, str] = {}
        self.finished = 0
        self.refusal: Exception | None = None
        self.errors = SimpleNamespace(Error=KeyError)
        self.Settings = dict

    def init(self, **given):
        if self.refusal is not None:
            raise self.refusal
        sys.stdout.write("begun\n")  # as trackio does
        self.given.append(given)
        return self

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, row, step=None):
        for name, value in row.items():
            if name not in self.axes.values():
                self.points.append((name, row[self.axes[name]] if step is None else step, value))

    def finish(self):
        self.finished += 1


@pytest.fixture
def service(monkeypatch):
    fake = Service()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # setdefault would leave it behind
    return fake


def steps(service, name):
    return [step for metric, step, _ in service.points if metric == name]


def train(log, first, last, *, checkpoint=None):
    log.truncate("policy", first)
    for step in range(first, last):
        log.write("policy", step, {"loss": step / 2, "bad": float("nan")})
        log.write("policy/val", step, {"loss": -step})
        if step == checkpoint:
            log.flush()


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_run_resumes_without_double_and_lost_points(service, tmp_path, name):
    killed = MetricLog(tmp_path, name)
    train(killed, 0, 10, checkpoint=5)
    killed.write("gates", 0, {"passed": 1})
    killed._stream.close()
    assert steps(service, "policy/loss") == list(range(6))  # nothing that a resumed run computes again
    with MetricLog(tmp_path, name) as log:
        train(log, 6, 12)
    assert steps(service, "policy/loss") == steps(service, "policy/val/loss") == list(range(12))
    assert steps(service, "gates/passed") == [0]  # the kill came before the next checkpoint
    assert {value for metric, _, value in service.points if metric == "policy/bad"} == set()
    assert service.finished == 1


@pytest.mark.parametrize("name", SERVICES)
def test_points_beyond_the_checkpoint_of_an_interrupted_run_are_not_sent_again(service, tmp_path, name):
    with MetricLog(tmp_path, name) as log:  # an interruption closes the log
        train(log, 0, 10)
    for last in (7, 12):
        log = MetricLog(tmp_path, name)
        train(log, 6, last)
        log.flush()
        log._stream.close()
    assert steps(service, "policy/loss") == list(range(12))


def test_a_session_continues_the_same_run_of_the_service(service, tmp_path):
    for _ in range(2):
        with MetricLog(tmp_path, TrackerName.wandb) as log:
            train(log, 0, 1)
    first, second = service.given
    assert first["id"] == second["id"]
    with MetricLog(tmp_path / "other", TrackerName.wandb) as log:
        train(log, 0, 1)
    assert service.given[2]["id"] != first["id"]


def test_another_tracker_gets_the_whole_curve(service, tmp_path):
    with MetricLog(tmp_path, TrackerName.none) as log:
        train(log, 0, 4)
    with MetricLog(tmp_path, TrackerName.trackio) as log:
        train(log, 3, 6)
    assert steps(service, "policy/loss") == list(range(6))


def test_wandb_is_offline_unless_the_environment_says_otherwise(service, tmp_path, monkeypatch):
    MetricLog(tmp_path, TrackerName.wandb).close()
    monkeypatch.setenv("WANDB_MODE", "online")
    MetricLog(tmp_path, TrackerName.wandb).close()
    assert [given["mode"] for given in service.given] == ["offline", "online"]


@pytest.mark.parametrize("name", SERVICES)
def test_services_see_the_settings_and_leave_standard_output_alone(service, tmp_path, name, capsys):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    MetricLog(tmp_path, name).close()
    assert service.given[0]["config"] == {"seed": 3}
    if name is TrackerName.trackio:
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_refuses_is_a_wrong_setting(service, tmp_path, name):
    service.refusal = ValueError("no such mode.\nsee there")
    with pytest.raises(SettingError, match=rf"tracker={name}: no such mode. see there; mend it, or give tracker=none"):
        MetricLog(tmp_path, name)


@pytest.mark.parametrize("name", SERVICES)
def test_a_missing_package_names_its_installation(tmp_path, monkeypatch, name, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with pytest.raises(MissingExtraError, match=r"'\.\[wandb\]'$|pip install trackio$"):
        MetricLog(tmp_path / "log", name)
    assert main(["make-dataset", f"tracker={name}", f"run_dir={tmp_path / 'run'}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "run" / "config.yaml").exists()  # the run directory is free for the corrected command


def test_none_leaves_the_numbers_alone(tmp_path):
    with MetricLog(tmp_path, TrackerName.none) as log:
        train(log, 0, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len(read_metrics(tmp_path)) == 4


def test_the_tracker_is_no_part_of_what_a_run_computes():
    assert default_run_dir("train-policy", {"tracker": "wandb"}) == "runs/train-policy"


def test_every_command_that_opens_a_log_has_the_setting():
    files = [path for room in ("jobs", "recipes") for path in (ROOT / "worldrl" / room).rglob("*.py")]
    opened = [call for path in files for call in re.findall(r"MetricLog\(([^)]*)\)", path.read_text())]
    assert len(opened) >= 8
    assert set(opened) == {"run.path, settings.tracker"}
