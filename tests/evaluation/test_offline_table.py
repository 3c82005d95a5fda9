"""Unit under test: ``worldrl.evaluation.offline.table``, on runs whose numbers are chosen."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.evaluation.offline.table import (
    OfflineRun,
    best_of,
    compare,
    finished_runs,
    over_datasets,
    read_run,
    rows_of,
    short_name,
    summarise,
)

BUDGET = {"episodes": 12, "steps": 600, "evaluations": 3, "online_steps": 0, "checked_steps": 0}


def run(algorithm: str, seed: int, value: float, data: str = "hopper/medium", **over: Any) -> OfflineRun:
    scores = {"raw": 10 * value, "dataset": value}
    given = {
        "config": {"seed": seed, "steps": 5},
        "over_estimation": 1.0,
        "budget": BUDGET,
        "updates": 5,
        "wall_s": 2.0,
    }
    return OfflineRun(
        **({"data": data, "algorithm": algorithm, "seed": seed, "scores": scores, "data_return": 20.0} | given | over)
    )


def row(algorithm: str, *values: float, **over: Any) -> list[OfflineRun]:
    return [run(algorithm, seed, value, **over) for seed, value in enumerate(values)]


def test_row_sums_seeds_up_by_the_interquartile_mean() -> None:
    found = summarise(row("ravl", 1.0, 2.0, 3.0, 100.0), seed=0)
    assert found["scores"]["dataset"]["value"] == 2.5  # of the middle half
    assert found["scores"]["dataset"]["lo"] < 2.5 < found["scores"]["dataset"]["hi"]
    assert found["less_data"]["value"] == 25 - 20
    assert found["budget"]["steps"] == 4 * 600
    assert (found["seeds"], found["wall_s"]) == ([0, 1, 2, 3], 8.0)
    silent = summarise(row("recoil", 1.0, 2.0, over_estimation=None), seed=0)
    assert silent["over_estimation"] is None


def test_difference_is_paired_by_seed_and_gives_the_verdict() -> None:
    base = row("bc", 10.0, 50.0, 90.0)  # seeds differ more than algorithms
    better = compare(row("ravl", 11.0, 51.25, 91.0), base)
    assert better is not None
    assert (better["scale"], better["verdict"]) == ("dataset", "better")
    assert better["difference"]["value"] == pytest.approx(13 / 12)
    half = 4.303 * 0.25 / 3  # Student's t of two degrees of freedom times sd / √3, sd² = 1/48
    assert better["difference"]["lo"] == pytest.approx(13 / 12 - half, abs=1e-3)
    verdicts = [
        compare(row("ravl", *values), base)["verdict"]  # pyright: ignore[reportOptionalSubscript]
        for values in ([9, 48.75, 89], [11, 49, 90], [11, 52, 90.5], [11.0])
    ]
    assert verdicts == ["worse", "within the interval", "within the interval", "open"]
    shifted = compare([run("ravl", 2, 91.0)], base)
    assert shifted is not None
    assert shifted["difference"]["value"] == 1.0  # less seed 2's, not less the first
    assert compare([run("ravl", 7, 91.0)], base) is None


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_equals_are_distinguished_in_one_of_twenty_comparisons(seeds: int) -> None:
    draws = np.random.default_rng(0).normal(size=(1000, seeds))
    base = row("bc", *[0.0] * seeds)
    told = [compare(row("ravl", *drawn), base)["verdict"] != "within the interval" for drawn in draws]  # pyright: ignore[reportOptionalSubscript]
    assert 0.03 < np.mean(told) < 0.07  # 0.05 ± 0.02 is three deviations; a bootstrap of three seeds says so of 0.25


def test_best_rival_is_the_one_of_the_largest_return() -> None:
    rows = rows_of([*row("td3_bc", 1, 2), *row("iql", 5, 4), *row("bc", 90, 90)])
    assert best_of(rows, "hopper/medium", ["td3_bc", "iql", "mopo"]) == "iql"
    assert best_of(rows, "cheetah/medium", ["td3_bc"]) is None


def test_rows_of_a_dataset_stand_together_in_whichever_order_grids_are_summed_up() -> None:
    other = "cheetah/medium"
    rows = rows_of([*row("bc", 1), *row("bc", 5, data=other), *row("ravl", 9, data=other), *row("ravl", 9)])
    assert list(rows) == [("hopper/medium", "bc"), ("hopper/medium", "ravl"), (other, "bc"), (other, "ravl")]


def test_algorithms_are_summed_up_over_datasets_only_where_they_have_all() -> None:
    other = "cheetah/medium"
    rows = rows_of(
        [
            *row("bc", 1, 3),
            *row("bc", 5, 7, data=other),
            *row("ravl", 9, 9),
            *row("iql", 1, 1),
            *row("iql", 2, data=other),
        ]
    )
    found = over_datasets(rows, seed=0)
    assert [entry["algorithm"] for entry in found] == ["bc"]
    assert found[0]["scores"]["dataset"]["value"] == 4.0  # the middle half of 1, 3, 5, 7
    assert "raw" not in found[0]["scores"]
    assert over_datasets(rows_of(row("bc", 1, 3)), seed=0) == []


def test_runs_of_different_settings_or_one_seed_twice_are_refused() -> None:
    first, second = row("bc", 1, 2)
    with pytest.raises(SettingError, match=r"seeds 0 and 1 were trained with different settings: steps: 5 -> 6"):
        rows_of([first, replace(second, config={"seed": 1, "steps": 6})])
    with pytest.raises(SettingError, match=r"bc on hopper/medium has a seed twice"):
        rows_of([first, first])


def write(folder: Path, command: str = "train-offline", **over: Any) -> Path:
    metrics = {
        "algorithm": "bc",
        "steps": 5,
        "scores": {"raw": {"value": 30.0}, "dataset": {"value": 3.0}},
        "evaluation": {"over_estimation": {"mean": 2.0}},
        "data": {"dataset_id": "worldrl/hopper/medium-v0", "source": "x", "mean_return": 20.0},
        "budget": BUDGET,
    } | over
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 4}))
    (folder / "result.json").write_text(json.dumps({"command": command, "seed": 4, "wall_s": 9.0, "metrics": metrics}))
    return folder


def test_finished_runs_are_found_at_any_depth_and_read(tmp_path: Path) -> None:
    write(tmp_path / "grid" / "stages" / "a" / "run")
    write(tmp_path / "grid" / "b", command="evaluate")
    (tmp_path / "grid" / "half").mkdir()
    (folder,) = finished_runs(tmp_path / "grid")
    found = read_run(folder)
    assert (found.data, found.algorithm, found.seed) == ("hopper/medium-v0", "bc", 4)
    assert (found.scores, found.over_estimation, found.wall_s) == ({"raw": 30.0, "dataset": 3.0}, 2.0, 9.0)
    with pytest.raises(SettingError, match="holds no finished run of train-offline"):
        finished_runs(tmp_path / "grid" / "half")


def test_run_without_a_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="was not evaluated"):
        read_run(write(tmp_path / "a", scores={}, evaluation=None))
    with pytest.raises(ArtefactError, match="a run of 'evaluate'"):
        read_run(write(tmp_path / "b", command="evaluate"))


@pytest.mark.parametrize("name", ["worldrl/hopper-v5/medium-v0", "runs/x/worldrl/hopper-v5/medium-v0/data"])
def test_short_name_is_the_same_for_id_and_folder(name: str) -> None:
    assert short_name(name) == "hopper-v5/medium-v0"
