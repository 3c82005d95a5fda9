"""Unit under test: ``worldrl benchmark-offline``, on two small datasets of Gymnasium's Pendulum."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from worldrl import cli
from worldrl.data.offline.minari_format import write_minari
from worldrl.data.offline.trajectories import DatasetInfo, VectorEpisode, from_episodes
from worldrl.jobs.offline import benchmark_offline
from worldrl.recipes.offline import training as offline_training

pytest.importorskip("minari")
pytest.importorskip("h5py")

SMALL = "common=preset=tiny episodes=2 video_episodes=0"


def episode(seed: int) -> VectorEpisode:
    """Thirty steps of a pendulum and a random motor."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=30)
    obs, _ = env.reset(seed=seed)
    action = np.random.default_rng(seed).uniform(-2, 2, (30, 1)).astype(np.float32)
    steps = [env.step(a) for a in action]
    seen = np.stack([obs, *(step[0] for step in steps)]).astype(np.float32)
    return VectorEpisode(seen, action, np.array([step[1] for step in steps], np.float32), False, True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets ``pendulum/random-v0`` and ``-v1``."""
    store = tmp_path_factory.mktemp("store")
    for number in range(2):
        name = f"worldrl/pendulum/random-v{number}"
        info = DatasetInfo(
            "x",
            (-2.0,),
            (2.0,),
            dataset_id=name,
            env_id="Pendulum-v1",
            max_episode_steps=30,
            ref_min=-200.0,
            ref_max=0.0,
        )
        data = from_episodes(info, [episode(10 * number + k) for k in range(3)])
        write_minari(store, data, algorithm="random", author="worldrl", description="x", score_episodes=1)
    return store / "worldrl" / "pendulum"


@pytest.fixture
def run(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def call(*tokens: str) -> int:
        return cli.main(["benchmark-offline", f"run_dir={tmp_path / 'grid'}", "workers=0", *tokens])

    return call


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "grid" / "result.json").read_text())["metrics"]


def test_grid_ends_in_one_table_in_four_forms(run: Any, store: Path, tmp_path: Path) -> None:
    data = f"data=[{store}/random-v0,{store}/random-v1]"
    names = ["algorithms=[bc,td3_bc,ravl]", "own.ravl=agent.critics=3 imagining.rollouts=16", "seeds=2", "seed=4"]
    assert run(data, *names, SMALL) == 0
    found = metrics(tmp_path)
    assert [(row["data"], row["algorithm"], row["seeds"]) for row in found["rows"]][:3] == [
        ("pendulum/random-v0", name, [4, 5]) for name in ("bc", "td3_bc", "ravl")
    ]
    assert len(found["rows"]) == 6
    for row in found["rows"]:
        raw, own = row["scores"]["raw"], row["scores"]["dataset"]
        assert raw["lo"] <= raw["value"] <= raw["hi"]
        assert own["value"] == pytest.approx(100 * (raw["value"] + 200) / 200)
        assert row["budget"]["episodes"] == 4
    assert [entry["algorithm"] for entry in found["overall"]] == ["bc", "td3_bc", "ravl"]
    against = {(one["algorithm"], one["than"]) for one in found["comparisons"]}
    assert against == {("td3_bc", "bc"), ("ravl", "bc"), ("ravl", "td3_bc")}
    config = (tmp_path / "grid/stages/pendulum-random-v0-ravl-4/run/config.yaml").read_text()
    assert "critics: 3" in config
    lines = list(csv.DictReader((tmp_path / "grid" / "runs.csv").read_text().splitlines()))
    assert len(lines) == 12
    assert {line["seed"] for line in lines} == {"4", "5"}
    assert "| pendulum/random-v1 | ravl | 2 |" in (tmp_path / "grid" / "results.md").read_text()
    page = (tmp_path / "grid" / "report.html").read_text().replace("\u00a0", " ")
    assert "ravl \u2212 td3_bc (dataset score)" in page
    assert "Of 6 comparisons of 3 algorithms on 2 datasets, up to 2 seeds each: " in page


def test_stopped_grid_resumes_with_what_is_missing(run: Any, store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    trained, main = [], offline_training.run_offline_training

    def stopping(settings: Any) -> Any:
        trained.append((settings.algorithm, settings.seed))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return main(settings)

    monkeypatch.setattr(offline_training, "run_offline_training", stopping)
    tokens = [f"data=[{store}/random-v0]", "algorithms=[bc,td3_bc]", "seeds=2", SMALL]
    assert run(*tokens) == cli.INTERRUPTED
    assert "| td3_bc | 1 |" in (tmp_path / "grid" / "results.md").read_text()  # what had finished can be read
    assert not (tmp_path / "grid" / "result.json").exists()
    assert run(*tokens) == 0
    assert trained == [("bc", 0), ("td3_bc", 0), ("bc", 1), ("bc", 1), ("td3_bc", 1)]
    assert [row["seeds"] for row in metrics(tmp_path)["rows"]] == [[0, 1], [0, 1]]


def test_run_that_fails_does_not_stop_the_others_and_is_tried_again(
    run: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = [f"data=[{store}/random-v0,{store}/random-v7]", "algorithms=[bc]", "seeds=1", SMALL]
    assert run(*tokens) == cli.USER_ERROR
    told = capsys.readouterr().err
    assert "bc on pendulum/random-v7, seed 0: dataset " in told
    assert "nothing of that name here" in told
    found = metrics(tmp_path)
    assert list(found["errors"]) == ["bc on pendulum/random-v7, seed 0"]
    assert [row["data"] for row in found["rows"]] == ["pendulum/random-v0"]
    (store / "random-v7").symlink_to(store / "random-v1")
    assert run(*tokens) == 0
    (store / "random-v7").unlink()
    assert metrics(tmp_path)["errors"] == {}
    assert len(metrics(tmp_path)["rows"]) == 2


def test_dataset_may_follow_the_seed(run: Any, store: Path, tmp_path: Path) -> None:
    assert run(f"data=['{store}/random-v{{seed}}']", "algorithms=[bc]", "seeds=2", SMALL) == 0
    (row,) = metrics(tmp_path)["rows"]
    assert (row["data"], row["seeds"]) == ("pendulum/random-v{seed}", [0, 1])
    second = (tmp_path / "grid/stages/pendulum-random-v-seed-bc-1/run/config.yaml").read_text()
    assert "random-v1" in second


def test_finished_trainings_are_summed_up_without_training(run: Any, store: Path, tmp_path: Path) -> None:
    for seed in range(2):
        words = [
            "preset=tiny",
            "algorithm=bc",
            "video_episodes=0",
            f"seed={seed}",
            f"run_dir={tmp_path}/alone/{seed}",
        ]
        assert cli.main(["train-offline", f"data={store}/random-v0", *words]) == 0
    assert run(f"runs=[{tmp_path}/alone]") == 0
    (row,) = metrics(tmp_path)["rows"]
    alone = [json.loads((tmp_path / "alone" / str(k) / "result.json").read_text())["metrics"] for k in range(2)]
    mean = np.mean([one["scores"]["raw"]["value"] for one in alone])
    assert (row["data"], row["seeds"]) == ("pendulum/random-v0", [0, 1])
    assert row["scores"]["raw"]["value"] == pytest.approx(mean)


def test_two_processes_give_what_one_gives(run: Any, store: Path, tmp_path: Path) -> None:
    tokens = [f"data=[{store}/random-v0]", "algorithms=[bc]", "seeds=2", SMALL]
    assert run(*tokens) == 0
    other = ["benchmark-offline", f"run_dir={tmp_path / 'other'}", "workers=2", *tokens]
    assert cli.main(other) == 0
    (tmp_path / "grid").rename(tmp_path / "first")
    (tmp_path / "other").rename(tmp_path / "grid")
    mine = metrics(tmp_path)["rows"][0]
    (tmp_path / "grid").rename(tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "grid")
    assert mine["scores"] == metrics(tmp_path)["rows"][0]["scores"]


def test_ensemble_is_trained_once_for_all_that_would_train_the_same(run: Any, store: Path, tmp_path: Path) -> None:
    tokens = [f"data=[{store}/random-v0]", "algorithms=[bc,mopo,ravl]", "seeds=2", f"{SMALL} ensemble.input_clip=10"]
    assert run(*tokens) == 0
    assert len(list((tmp_path / "grid" / "worlds").iterdir())) == 2  # one per seed
    stages = tmp_path / "grid" / "stages"
    learned = {name: '"world"' in (stages / name / "run/metrics.jsonl").read_text() for name in stage_names(stages)}
    assert [name for name, told in learned.items() if told] == [f"pendulum-random-v0-mopo-{seed}" for seed in (0, 1)]
    alone = [f"data={store}/random-v0", "algorithm=ravl", "seed=1", f"run_dir={tmp_path / 'alone'}"]
    assert cli.main(["train-offline", *alone, *SMALL.removeprefix("common=").split(), "ensemble.input_clip=10"]) == 0
    results = [json.loads((folder / "result.json").read_text())["metrics"]
               for folder in (tmp_path / "alone", stages / "pendulum-random-v0-ravl-1" / "run")]  # fmt: skip
    assert results[0]["hash"] == results[1]["hash"]
    assert results[0]["world"] == results[1]["world"]


def stage_names(stages: Path) -> list[str]:
    return sorted(path.name for path in stages.iterdir())


def test_words_for_all_reach_those_that_have_them() -> None:
    settings = benchmark_offline.BenchmarkOfflineSettings(
        data=["x"],
        algorithms=["bc", "iql", "neubay"],
        common="training.batch_size=64 agent.discount=0.9 preset=tiny worlds=w",
        own={"iql": "agent.discount=0.8"},
    )
    words = {name: benchmark_offline.own_words(settings, name) for name in settings.algorithms}
    assert words["bc"] == {"training.batch_size": "64", "preset": "tiny"}
    assert words["iql"] == {"training.batch_size": "64", "agent.discount": "0.8", "preset": "tiny"}
    assert words["neubay"] == {"agent.discount": "0.9", "preset": "tiny", "worlds": "w"}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "data: name at least one dataset"),
        (["data=[x]", "algorithms=[bc,rvl]"], "did you mean 'ravl'?"),
        (["data=[x]", "own.rvl=seed=1"], "own.rvl: not among"),
        (["data=[x]", "common=seed=1"], "seed: benchmark-offline gives it to each run itself"),
        (["data=[x]", "common=agent.colour=1"], "has a setting 'agent.colour'"),
        (["data=[x]", "own.bc=agent.colour=1"], "train-offline has no setting 'agent.colour'"),
        (["data=[x]", "algorithms=[bc]", "common=training.steps=0"], "training.steps must be at least 1"),
        (["data=[x]", "own.ravl.agent.critics=5"], "own.ravl takes one text; give own.ravl='agent.critics=5'"),
        (["data=[x,x]"], "data: each may be named once"),
        (["data=[a/x/y,b/x/y]", "algorithms=[bc]"], "end in the same two parts"),
        (["runs=[nowhere]"], "nowhere holds no finished run of train-offline"),
    ],
)
def test_mistake_is_reported_before_anything_is_trained(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], message: str
) -> None:
    assert run(*tokens) == cli.USER_ERROR
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()
