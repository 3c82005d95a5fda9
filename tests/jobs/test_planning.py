"""``planner=`` of evaluate, benchmark and collect: results, pairs with and without, resumed runs, refusals."""

import json
from dataclasses import replace

import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.benchmark import benchmark, compare
from worldrl.jobs.benchmark.benchmark import BenchmarkSettings
from worldrl.jobs.benchmark.compare import CompareSettings
from worldrl.jobs.data import collect
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.policy import evaluate
from worldrl.jobs.policy.evaluate import EvaluateSettings
from worldrl.rollout.planning.config import PlanningConfig
from worldrl.settings import compose


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_policy, make_world_model):
    folder = tmp_path_factory.mktemp("planning")
    tiny_policy().save(folder / "policy")
    tiny_policy(cameras=["image", "wrist_image"]).save(folder / "two-cameras")
    make_world_model().save(folder / "world_model")
    make_world_model(size=32).save(folder / "larger")
    make_world_model(chunk_length=8).save(folder / "longer")
    return folder


def planning(folders, world_model="world_model", **changed):
    small = {"candidates": 2, "horizon": 1, "threshold": 0.0}
    return {
        "planner": "best_of_n",
        "planning": PlanningConfig(world_model=str(folders / world_model), **(small | changed)),
    }


def evaluating(folders, run_dir, **changed):
    fields = {"policy": str(folders / "policy"), "tasks": ["PickRedCube"], "episodes": 2, "workers": 0, "videos": 0}
    return EvaluateSettings(run_dir=str(run_dir), **(fields | planning(folders) | changed))


@pytest.fixture(scope="module")
def evaluated(folders):
    """The same episodes with a planner, and without."""
    with_planner = evaluating(folders, folders / "with")
    evaluate.main(replace(with_planner, planner="none", run_dir=str(folders / "without")))
    return with_planner, evaluate.main(with_planner)


def rows(folder):
    """Outcomes but for the planner's time."""
    found = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    for row in found:
        row.get("planned", {}).pop("seconds", None)
    return sorted(found, key=lambda row: row["index"])


def test_the_result_names_the_planner_and_counts_its_chunks(evaluated, capsys):
    settings, metrics = evaluated
    found = metrics["planning"]
    assert metrics["policy"] == "policy + best_of_n"
    assert (found["planner"], found["planned"], found["alone"]) == ("best_of_n", 32, 0)
    assert found["seconds_per_chunk"] > 0
    assert evaluate.main(settings) == metrics
    said = " ".join(capsys.readouterr().err.split())
    assert "measured with the planner best_of_n: it chose 32 of 32 chunks" in said


def test_with_and_without_are_pairs(evaluated, folders, tmp_path):
    settings = CompareSettings(a=str(folders / "without"), b=str(folders / "with"), run_dir=str(tmp_path))
    metrics = compare.main(settings)
    assert (metrics["a"], metrics["b"], metrics["paired"]["n"]) == ("policy", "policy + best_of_n", 2)
    assert "planning" not in json.loads((folders / "without" / "result.json").read_text())["metrics"]


@pytest.mark.usefixtures("evaluated")
def test_a_resumed_evaluation_and_two_workers_give_the_same(folders, tmp_path):
    for name in ("config.yaml", "evaluation.json"):
        (tmp_path / name).write_bytes((folders / "with" / name).read_bytes())
    lines = (folders / "with" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_bytes(lines[0])
    evaluate.main(evaluating(folders, tmp_path, workers=2))
    assert rows(tmp_path) == rows(folders / "with")


def test_other_planning_is_another_result(evaluated, folders):
    settings, _ = evaluated
    with pytest.raises(Exception, match=r"planning\.candidates"):
        evaluate.main(replace(settings, planning=replace(settings.planning, candidates=3)))


def test_benchmark_measures_the_same(evaluated, folders, tmp_path):
    settings, metrics = evaluated
    fields = {"policy": settings.policy, "tasks": settings.tasks, "episodes": 2, "workers": 0, "failures": 0}
    found = benchmark.main(BenchmarkSettings(run_dir=str(tmp_path), **fields, **planning(folders)))
    assert found["success"] == metrics["success"]
    assert (found["policy"], found["policy_hash"]) == (metrics["policy"], metrics["policy_hash"])
    assert found["planning"]["planned"] == metrics["planning"]["planned"]


def collecting(folders, run_dir, **changed):
    fields = {"policy": str(folders / "policy"), "tasks": ["PickRedCube"], "image_size": 16, "expert_episodes": 0}
    fields |= {"policy_episodes": 2, "hold_steps": 0, "workers": 0} | planning(folders)
    return CollectSettings(run_dir=str(run_dir), **(fields | changed))


def test_collected_episodes_are_those_of_the_planner(folders, tmp_path):
    digests = []
    for workers in (0, 2):
        metrics = collect.main(collecting(folders, tmp_path / str(workers), workers=workers))
        assert metrics["planning"] == {"planner": "best_of_n", "planned": 32, "alone": 0, "seconds_per_chunk": None}
        digests.append(EpisodeDataset.open(tmp_path / str(workers) / "dataset").fingerprint)
    assert digests[0] == digests[1]


# --- refusals ---


@pytest.mark.parametrize(
    ("world_model", "policy", "text"),
    [
        ("larger", "policy", r"planning\.world_model: .* has image size \(32, 32\), the policy .* has \(16, 16\)"),
        ("longer", "policy", r"planning\.world_model: .* has chunk length 8, the policy .* has 4"),
        (
            "world_model",
            "two-cameras",
            r"planning\.world_model: .* has observations image, the policy .* image, wrist_image;",
        ),
        ("world_model", "nowhere", "nowhere: no such folder"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(folders, tmp_path, world_model, policy, text):
    settings = evaluating(folders, tmp_path / "run", **planning(folders, world_model))
    with pytest.raises((SettingError, ArtefactError), match=text):
        evaluate.main(replace(settings, policy=str(folders / policy)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "text"), [({"planner": "best"}, "planner: unknown value 'best'"), ({"latency": 1}, "give latency=0")]
)
def test_settings_that_cannot_plan_are_refused(folders, tmp_path, changed, text):
    with pytest.raises(SettingError, match=text):
        evaluate.main(evaluating(folders, tmp_path / "run", **changed))


def test_a_scripted_expert_has_no_planner(folders, tmp_path):
    settings = BenchmarkSettings(policy="expert", tasks=["PickRedCube"], run_dir=str(tmp_path), **planning(folders))
    with pytest.raises(SettingError, match="give planner=none"):
        benchmark.main(settings)


def test_collect_needs_episodes_of_a_policy(folders, tmp_path):
    with pytest.raises(SettingError, match="planner: plans for policy_episodes"):
        collecting(folders, tmp_path, policy=None, policy_episodes=0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"planning.candidates": "4"}, "planning.candidates has no effect with planner=none"),
        ({"planner": "mppi", "planning.cem.iterations": "2"}, "no effect with planner=mppi"),
        ({"planner": "cem", "planning.candidates": "1"}, "planning.candidates must be at least 2, got 1"),
        ({"planner": "cem", "planning.horizon": "0"}, "planning.horizon must be at least 1, got 0"),
        ({"planner": "cem", "planning.cem.elite_share": "0"}, r"planning.cem.elite_share must be in \(0, 1\]"),
    ],
)
def test_settings_without_effect_or_out_of_range_are_refused(given, text):
    with pytest.raises(SettingError, match=text):
        compose("evaluate", EvaluateSettings, {"policy": "p", **given})
