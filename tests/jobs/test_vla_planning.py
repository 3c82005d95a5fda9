"""The planner of ``worldrl train-vla``: who collects with it, what it is compared with, resumed runs, refusals."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.storage.log import MetricLog
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.policy import evaluate as policy_evaluation
from worldrl.jobs.vla import checks, stages
from worldrl.jobs.vla.loop import Loop
from worldrl.jobs.vla.plan import check_held_out, planned, require_given
from worldrl.jobs.vla.planning import measure_planner, planning_tables
from worldrl.jobs.vla.report import PLANNED_PAGE
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation, TrainVlaSettings
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes import planning as recipe
from worldrl.recipes.run import open_run
from worldrl.rollout.planning.config import NEWEST, PlanningConfig
from worldrl.settings import compose

COUNTS = {"policy_episodes": 1, "expert_episodes": 0, "imagined_episodes": 0, "planner_episodes": 2, "hold_steps": 0}


@pytest.fixture
def opened(planning_folder):
    """Open a run directory; its simulator runs in this process, and a chunk is planned wherever a plan reaches 0."""

    def open_loop(run_dir, **changed):
        config = PlanningConfig(world_model=NEWEST, candidates=2, horizon=1, threshold=0.0, dtype="float32")
        fields = {"start": str(planning_folder / "world_model"), "tasks": ["PickRedCube"], "planner": "best_of_n"}
        fields |= {"policy": TokenPolicyConfig(image_size=16, chunk_length=4), "planning": config}
        fields |= {"collection": CollectionSettings(**COUNTS), "evaluation": Evaluation(episodes=2, videos=1)}
        settings = TrainVlaSettings(run_dir=str(run_dir), **(fields | changed))
        with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
            plan = planned(settings, torch.device("cpu"))
            plan.suite.options = replace(plan.suite.options, workers=0)
            loop = Loop(plan, run, log)
            return loop, loop.policy(planning_folder / "policy"), loop.world(planning_folder / "world_model")

    return open_loop


@pytest.fixture
def killed(monkeypatch):
    """Fail before the second call of a method, once."""

    def arm(owner, name):
        original, calls = getattr(owner, name), []

        def strike(*args, **kwargs):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, strike)

    return arm


def test_a_round_collects_with_the_planner_and_resumes_between_its_episodes(opened, killed, tmp_path):
    recording = stages.practice(*_round(opened(tmp_path / "whole")))
    planned_chunks = {e.meta["source"]: e.meta.get("planned") for e in recording.dataset.records}
    assert planned_chunks == {"policy": None, "planner": {"planned": 16, "alone": 0}}
    assert [record.meta["source"] for record in recording.dataset.records].count("planner") == 2
    loop, policy, world = opened(tmp_path / "cut")
    killed(LeRobotWriter, "add_episode")
    with pytest.raises(KeyboardInterrupt):
        stages.practice(loop, 1, policy, world, policy)
    assert len(EpisodeDataset.open(tmp_path / "cut/stages/round-1-1-practice/dataset")) == 1
    again = stages.practice(*_round(opened(tmp_path / "cut")))
    assert again.dataset.fingerprint == recording.dataset.fingerprint
    assert loop.run.stage("round-1-1-practice").summary["success"]["planner"]["n"] == 2


def _round(found):
    loop, policy, world = found
    return loop, 1, policy, world, policy


def test_the_first_round_from_scratch_has_nothing_to_plan_in(opened, monkeypatch, tmp_path):
    loop, policy, _ = opened(tmp_path)
    sources = []
    monkeypatch.setattr(Loop, "collect", lambda self, folder, plans: sources.extend(p.specs for p in plans) or {})
    stages.practice(loop, 1, policy, None, policy)
    assert {spec.source for specs in sources for spec in specs} == {"policy", "blind_expert"}


def test_a_policy_is_paired_with_itself_and_the_planner(opened, killed, monkeypatch, tmp_path):
    loop, policy, world = opened(tmp_path)
    alone = checks.evaluate(loop, "05-after", policy)
    killed(policy_evaluation.EvalLog, "add")
    with pytest.raises(KeyboardInterrupt):
        measure_planner(loop, world, {"after": (policy, alone)})
    metrics = measure_planner(loop, world, {"after": (policy, alone)})
    found = metrics["planning"]["after"]
    assert (found["planner"], found["planned"], found["alone"]) == ("best_of_n", 32, 0)
    assert found["seconds_per_chunk"] > 0
    compared = found["comparison"]
    assert (compared["a"], compared["b"], compared["paired"]["n"]) == ("policy", "policy + best_of_n", 2)
    assert not list(loop.run.stage("07-planner-after").folder.glob("videos/*"))
    monkeypatch.setattr(type(loop.plan.suite), "player", None)  # a finished stage starts no simulator
    assert measure_planner(loop, world, {"after": (policy, alone)}) == metrics
    (table,) = planning_tables(metrics)
    assert table.title == "Real success with the planner best_of_n"
    assert [(row[0], row[4]) for row in table.rows] == [("final", "32 of 32")]
    assert PLANNED_PAGE[:2] == ("success", "measurements")


def test_without_a_planner_nothing_is_measured(opened, tmp_path):
    loop, policy, world = opened(
        tmp_path, planner="none", collection=CollectionSettings(**COUNTS | {"planner_episodes": 0})
    )
    assert measure_planner(loop, world, {"after": (policy, None)}) == {}
    assert planning_tables({}) == []
    assert not (tmp_path / "stages" / "07-planner-after").exists()


def test_planned_episodes_count_where_episodes_are_held_out():
    none = {"policy_episodes": 0, "expert_episodes": 1, "imagined_episodes": 0}
    few = TrainVlaSettings(collection=CollectionSettings(**none))
    with pytest.raises(SettingError, match=r"held_out: 0\.2 of 1 collected"):
        check_held_out(few, 1)
    check_held_out(replace(few, planner="cem", collection=CollectionSettings(**none, planner_episodes=20)), 1)


# --- refusals ---


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"collection.planner_episodes": "3"}, "nobody would plan them; give planner=best_of_n"),
        ({"planner": "best"}, "planner: unknown value 'best'"),
        (
            {"planner": "cem", "suite": "recordings", "data": "d", "rounds": "1"},
            "no simulator to act in; give planner=none",
        ),
        ({"planner": "cem", "planning.world_model": "bundled"}, "train-vla plans in its own world model; leave it out"),
        (
            {"planner": "mppi", "start": "scratch", "rounds": "1", "collection.planner_episodes": "3"},
            "no world model before round 2; give rounds=2",
        ),
        ({"planning.candidates": "4"}, "planning.candidates has no effect with planner=none"),
        ({"planner": "mppi", "planning.cem.iterations": "2"}, "no effect with planner=mppi"),
        ({"planner": "cem", "collection.planner_episodes": "-1"}, "collection.planner_episodes must be at least 0"),
    ],
)
def test_settings_that_cannot_plan_are_refused(given, text):
    with pytest.raises(SettingError, match=text):
        compose("train-vla", TrainVlaSettings, given)


def test_a_given_policy_of_several_observations_is_refused_before_anything_is_recorded(planning_folder, monkeypatch):
    settings = TrainVlaSettings(supervised=str(planning_folder / "policy"), planner="cem")
    facts = recipe.policy_facts(planning_folder / "policy")
    require_given(settings, {"frame_stride": 1, "memory_frames": 2})
    monkeypatch.setattr(recipe, "policy_facts", lambda folder: replace(facts, n_obs_steps=2))
    with pytest.raises(SettingError, match="a planner one; give planner=none"):
        require_given(settings, {"frame_stride": 1, "memory_frames": 2})
