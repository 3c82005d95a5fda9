"""``worldrl demo``: pairs of the same episodes, films, a page that says what is imagined and what is few, bundled weights."""

import json
from dataclasses import replace

import numpy as np
import pytest

from worldrl import paths
from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.core.statistics.intervals import paired, wilson
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.benchmark import compare
from worldrl.jobs.benchmark.compare import CompareSettings
from worldrl.jobs.policy import evaluate
from worldrl.jobs.policy.evaluate import EvaluateSettings
from worldrl.jobs.world_model import demo
from worldrl.jobs.world_model.demo import DemoSettings
from worldrl.jobs.world_model.demo_report import sentence, small
from worldrl.recipes.planning import planner_of
from worldrl.rollout.planning.config import PlanningConfig

MOST_MB, MOST_MB_TOGETHER = 20, 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_policy, make_world_model):
    folder = tmp_path_factory.mktemp("demo")
    tiny_policy().save(folder / "policy")
    tiny_policy(image_size=24).save(folder / "larger")
    make_world_model().save(folder / "world_model")
    return folder


@pytest.fixture(scope="module")
def settings(folders):
    planning = PlanningConfig(world_model=str(folders / "world_model"), candidates=2, horizon=1, threshold=0.0)
    fields = {"policy": str(folders / "policy"), "episodes": 1, "workers": 0, "seed": 7}
    return DemoSettings(run_dir=str(folders / "run"), planning=planning, **fields)


@pytest.fixture(scope="module")
def shown(settings):
    return demo.main(settings)


def test_what_is_measured_is_what_evaluate_and_compare_measure(shown, settings, folders, tmp_path):
    fields = {"policy": settings.policy, "kind": "object", "episodes": 1, "seed": 7, "workers": 0, "videos": 0}
    evaluate.main(EvaluateSettings(run_dir=str(tmp_path / "a"), **fields))
    planning = {"planner": "best_of_n", "planning": settings.planning}
    planned = evaluate.main(EvaluateSettings(run_dir=str(tmp_path / "b"), **fields, **planning))
    found = compare.main(CompareSettings(a=str(tmp_path / "a"), b=str(tmp_path / "b"), run_dir=str(tmp_path / "c")))
    assert {name: shown[name] for name in ("before", "after", "paired", "tasks", "a_hash", "b_hash")} == {
        name: found[name] for name in ("before", "after", "paired", "tasks", "a_hash", "b_hash")
    }
    assert shown["planning"]["planned"] == planned["planning"]["planned"] > 0
    result = json.loads((folders / "run" / "result.json").read_text())
    assert (result["command"], result["metrics"]["paired"]["n"]) == ("demo", 3)
    assert result["metrics"]["sides"] == {"before": "alone", "after": "planned"}


def test_the_page_shows_films_of_the_first_episodes_and_says_that_they_are_few(shown, folders):
    run = folders / "run"
    assert len(list((run / "videos").glob("*.mp4"))) == 3
    page = (run / "report.html").read_text()
    for text in (
        "3 episodes are few.",
        "Left: real. Right: imagined.",
        "worldrl demo episodes=100",
    ):
        assert text in page
    films = EpisodeDataset.open(run / "stages" / "01-films" / "dataset")
    assert [(one.meta["task"], one.meta["index"], one.meta["seed"]) for one in films.records] == [
        (task, 0, 7) for task in shown["tasks"]
    ]


def test_the_films_are_there_before_anything_is_measured(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        demo.main(replace(settings, run_dir=str(tmp_path / "run")))
    assert len(list((tmp_path / "run" / "videos").glob("*.mp4"))) == 3
    assert "films: " in capsys.readouterr().err


def test_a_second_start_plays_nothing_again(shown, settings, monkeypatch, capsys):
    monkeypatch.setattr("worldrl.rollout.real.rollouts.EmbeddedPlayer.play", lambda *_, **__: iter(()))
    again = demo.main(settings)
    assert {**again, "planning": None} == {**shown, "planning": None}
    assert "Alone the policy succeeded in" in capsys.readouterr().err


def test_a_policy_that_the_world_model_does_not_fit_is_refused(settings, folders, tmp_path):
    with pytest.raises(SettingError, match="image size"):
        demo.main(replace(settings, policy=str(folders / "larger"), run_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("shown")
def test_another_policy_needs_another_run(settings, folders):
    with pytest.raises(RunDirectoryError, match="policy"):
        demo.main(replace(settings, policy=str(folders / "larger" / ".." / "policy")))


@pytest.mark.parametrize(
    ("alone", "planned", "says", "few"),
    [
        ([0, 1, 0, 1], [1, 1, 0, 1], "no difference shown (+25.0 points", True),
        ([0] * 60 + [1] * 60, [1] * 120, "a gain (+50.0 points", False),
        ([1] * 120, [0] * 60 + [1] * 60, "a loss (−50.0 points", False),
    ],
)
def test_the_statement_follows_from_the_interval_alone(alone, planned, says, few):
    rates = {"before": wilson(sum(alone), len(alone)), "after": wilson(sum(planned), len(planned))}
    metrics = {**rates, "paired": paired(np.array(alone, bool), np.array(planned, bool))}
    assert says in sentence(metrics)
    assert ("are few" in sentence(metrics)) is few
    assert bool(small(metrics)) is few


def test_the_bundled_policy_fits_the_bundled_world_model_and_all_bundled_weights_are_small(tmp_path):
    settings = DemoSettings()
    planner = planner_of(settings, str(settings.policy_folder))
    assert replace(planner.config, world_model="bundled") == PlanningConfig()
    assert demo.protocol_of(settings).tasks == ("PickRedCube", "PickGreenCylinder", "PickYellowBrick")
    sizes = [sum(path.stat().st_size for path in weights.iterdir()) for weights in paths.bundled_weights()]
    assert max(sizes) < MOST_MB * 1e6
    assert sum(sizes) < MOST_MB_TOGETHER * 1e6
