"""Units under test: ``worldrl.reproductions.reproduce`` and the frame of ``worldrl.reproductions``."""

import json
from pathlib import Path
from typing import Any

import pytest

from worldrl.cli import main as command_line
from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.recipes.run import open_run
from worldrl.recipes.world_model.start import BUNDLED, weights_folder
from worldrl.reproductions import reproduce
from worldrl.reproductions.catalogue import CATALOGUE, SCALES, changed, find, methods_of, numbers_read
from worldrl.reproductions.eva.settings import OTHERS, EvaSettings
from worldrl.reproductions.findings import VERDICTS, Claim, Findings, across_seeds
from worldrl.reproductions.neubay.bandit import BanditSettings
from worldrl.reproductions.offline_video.settings import CHUNK
from worldrl.reproductions.reproduce import ReproduceSettings
from worldrl.world_models.video.model import VideoWorldModel

# Open the bundled world model, nine times or twice, record, train and plan for two arms, or run train-vla five times.
SLOW = ("offline-video", "methods", "eva", "wovr", "sword", "world-vla-loop")
TINY = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CATALOGUE]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.2, 0.8], "reproduced"),
        ([-1.0, -1.2, -0.8], "contrary"),
        ([1.0, -0.5, 0.2], "not reproduced"),
        ([0.5], "open"),
        ([0.0, 0.0], "not reproduced"),
    ],
)
def test_verdict_follows_from_the_interval(values: list[float], verdict: str) -> None:
    assert Claim("s", "q", values).verdict == verdict


def test_verdict_of_all_needs_all() -> None:
    good, no, bad = Claim("a", "q", [1.0, 1.1]), Claim("b", "q", [1.0, -1.0]), Claim("c", "q", [-1.0, -1.1])
    assert Findings([good, good]).verdict == "reproduced"
    assert Findings([good, no]).verdict == "not reproduced"
    assert Findings([good, no, bad]).verdict == "contrary"
    assert Findings([Claim("d", "q", [1.0]), Claim("e", "q", [-1.0])]).verdict == "open"


def test_curve_over_seeds_has_the_mean_and_a_band() -> None:
    curve = across_seeds("t", "x", "y", [1, 2], {"a": [[1.0, 5.0], [3.0, 5.0]]})
    assert list(curve.series["a"]) == [(1.0, 2.0), (2.0, 5.0)]
    assert curve.bands["a"][0] == pytest.approx((1.0, 2 - 12.706, 2 + 12.706), abs=1e-3)  # t(0.975, 1) · √2 / √2


def test_changes_are_checked() -> None:
    assert changed(BanditSettings(), {"updates": 7.0, "penalty": 1.0}).updates == 7
    with pytest.raises(SettingError, match=r"change.update: .*did you mean 'updates'"):
        changed(BanditSettings(), {"update": 7.0})
    with pytest.raises(SettingError, match=r"change.updates: must be a whole number, got 7.5"):
        changed(BanditSettings(), {"updates": 7.5})
    assert changed(EvaSettings(), {"tasks": "BimanualLiftPot"}).tasks == "BimanualLiftPot"


def test_neighbouring_stages_are_of_different_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of one seed make what they share in turns: two workers in one seed wait for each other."""
    seeds: list[int] = []

    class StopError(Exception):
        pass

    def stop(name: str, tasks: dict[str, Any], workers: int, *, on_result: Any, crew: Any) -> None:
        seeds.extend(task.cell.seed for task in tasks.values())
        raise StopError

    monkeypatch.setattr(reproduce, "run_tasks", stop)
    settings = ReproduceSettings("pgd", str(tmp_path / "run"), seed=3, scale="tiny", seeds=4)
    with pytest.raises(StopError):
        reproduce.main(settings)
    assert seeds == [3, 4, 5, 6] * 5


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_effect_has_all_scales(name: str) -> None:
    assert set(find(name).load().SETTINGS) == set(SCALES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["neubay-bandid"], "unknown effect 'neubay-bandid'; did you mean 'neubay-bandit'?"),
        (["edge-of-reach", "change.env=3"], "change.env: must be a name, got 3"),
        (["eva", "change.tests=many"], "change.tests: must be a number, got many"),
        (["eva", "change.tasks=BimanualOpenDrawr"], "did you mean 'BimanualOpenDrawer'?"),
        (["offline-video", "change.task=PickRedCub"], "did you mean 'PickRedCube'?"),
        (["offline-video", "change.trajectory_share=1.5"], "change.trajectory_share must be in [0, 1], got 1.5"),
        (["neubay-bandit", "scale=big"], "scale: unknown value 'big'"),
        (["neubay-bandit", "change.width=0.5"], "change.width must be at least 1, got 0.5"),
    ],
)
def test_mistake_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["reproduce", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_an_effects_settings_may_choose_its_methods() -> None:
    effect = find("eva").load()
    quick = effect.SETTINGS["quick"]
    assert methods_of(effect, changed(quick, {"arms": "flow-grpo+none"})) == ("none", "flow-grpo")
    assert "imitate" not in methods_of(effect, quick)  # of no practice
    everything = changed(quick, {"executed_plans": 4})
    assert methods_of(effect, everything) == tuple(name for name in effect.METHODS if name not in OTHERS)
    assert methods_of(effect, changed(everything, {"arms": "+".join(effect.METHODS)})) == effect.METHODS
    other = find("neubay-bandit").load()
    assert methods_of(other, other.SETTINGS["quick"]) == other.METHODS


def test_without_a_name_it_lists_all_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line(["reproduce"]) == 0
    text = capsys.readouterr().err
    assert all(name in text for name in CATALOGUE)
    assert list(tmp_path.iterdir()) == []


def test_name_goes_into_the_run_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["config", "show", "reproduce", "neubay-bandit"]) == 0
    assert "run_dir: runs/reproduce-neubay-bandit\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", TINY)
def test_tiny_run_resumes_and_leaves_a_page(name: str, tmp_path: Path) -> None:
    settings = ReproduceSettings(name=name, run_dir=str(tmp_path / "run"), scale="tiny", workers=0)
    effect = find(name).load()
    methods = list(methods_of(effect, effect.SETTINGS["tiny"]))
    first = reproduce.main(settings)
    stages = sorted((tmp_path / "run" / "stages").glob("*/stage.json"))
    assert len(stages) == 2 * len(methods)
    stages[0].unlink()
    kept = {path: path.stat().st_mtime_ns for path in stages[1:]}
    again = reproduce.main(settings)
    assert again == first  # the missing stage was computed anew, to the same numbers
    assert {path: path.stat().st_mtime_ns for path in stages[1:]} == kept
    assert first["verdict"] in VERDICTS
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    counted = [claim["n"] + claim["undecided"] for claim in result["metrics"]["claims"]]
    assert counted == [2] * len(first["claims"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert first["claims"][0]["statement"].partition(" (")[0].split("'")[0] in page
    assert "<svg" in page
    strips = [method for method in methods if f"{method}, seed 0" in page]
    assert strips == (methods if name == "eva" else [])


class ComputingError(Exception):
    """Stages are computed."""


def test_stages_of_an_earlier_version_are_refused_before_others_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept one number of what a method climbed, in place of every term's."""

    def compute(*_: object) -> None:
        raise ComputingError

    monkeypatch.setattr(reproduce, "compute", compute)
    settings, effect = ReproduceSettings(name="eva", run_dir=str(tmp_path), scale="tiny"), find("eva").load()
    read = numbers_read(effect, effect.SETTINGS["tiny"], "flow-grpo")
    plain = {name: 0 for name in read if "." not in name}
    climb = {name.removeprefix("climb."): [0.0] for name in read if name.startswith("climb.") and "terms" not in name}
    with open_run("reproduce", settings) as run:
        stage = run.stage("seed-1-flow-grpo")
        stage.finish({**plain, "per_plan": {"reward": [0.0]}, "climb": climb})
    with pytest.raises(RunDirectoryError) as refused:
        reproduce.main(settings)
    assert str(refused.value) == (
        f"{stage.folder}: an earlier version finished this stage, and kept no climb.terms.moving_executability; choose a new run_dir"
    )
    kept = json.loads((stage.folder / "stage.json").read_text())
    kept["summary"]["climb"]["terms"] = {"moving_executability": [0.0]}
    kept.pop("digest")  # as earlier versions wrote it
    (stage.folder / "stage.json").write_text(json.dumps(kept))
    with pytest.raises(ComputingError):
        reproduce.main(settings)


def test_a_run_continues_with_another_number_of_workers(tmp_path: Path) -> None:
    for workers in (2, 0):
        with open_run("reproduce", ReproduceSettings(name="eva", run_dir=str(tmp_path), workers=workers)):
            pass
    changed = ReproduceSettings(name="eva", run_dir=str(tmp_path), workers=0, seed=1)
    with pytest.raises(RunDirectoryError, match="seed: 0 -> 1; choose"), open_run("reproduce", changed):
        pass


@pytest.mark.slow
def test_workers_compute_the_same(tmp_path: Path) -> None:
    results = [
        reproduce.main(
            ReproduceSettings(name="neubay-bandit", run_dir=str(tmp_path / str(n)), scale="tiny", seeds=1, workers=n)
        )
        for n in (0, 2)
    ]
    assert results[0] == results[1]


def test_the_stride_is_checked_against_the_bundled_models_chunk() -> None:
    assert VideoWorldModel.load(weights_folder(BUNDLED)).chunk_length == CHUNK
