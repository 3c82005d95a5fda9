"""Unit under test: ``worldrl train-vla suite=libero_...``, through a tiny suite's workers (``-m libero`` has the real one)."""

import json
import os
from pathlib import Path

import pytest
import torch

import worldrl.jobs.vla.external_suite as external_suite
import worldrl.rollout.suites.libero as libero
from worldrl.cli import main
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.benchmark.benchmark import BenchmarkSettings
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.vla import loop, stages
from worldrl.jobs.vla.external_suite import measured_pose_note, require_possible, training_states
from worldrl.jobs.vla.plan import check_held_out, check_policy_fits, planned
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation, Scratch, TrainVlaSettings
from worldrl.rollout.real.specs import spec_of
from worldrl.rollout.suites.registry import find_suite
from worldrl.settings import compose
from worldrl.workers.libero import facts as libero_facts

SIZE = 16
SMALL = (
    "preset=tiny", "suite=libero_goal", "tasks=[reach_up]", "rounds=2", "envs_per_worker=2", "demonstrations=3", "cloning.steps=3",
    f"policy.image_size={SIZE}", f"world_model.codec.image_size={SIZE}", "scratch.training.codec_steps=2", "scratch.training.steps=2",
    "scratch.training.outcome_steps=2", "training.steps=2", "training.outcome_steps=2", "collection.imagined_episodes=1",
    "planner=mppi", "planning.candidates=2", "planning.horizon=1", "collection.planner_episodes=1",
    "collection.expert_episodes=2", "improvement.self_training.rollouts=4", "improvement.starts_per_task=2", "evaluation.verify=1",
)  # fmt: skip


@pytest.fixture
def suite(fake_libero, monkeypatch):
    monkeypatch.setitem(libero_facts.SUITES, "libero_goal", libero_facts.SuiteFacts(2, 24))  # the mark is 20 steps away
    return fake_libero


def tasks_of(settings):
    return planned(settings, torch.device("cpu")).tasks


def states_in(folder):
    return [(r.source, spec_of(r.meta).init_id, r.success) for r in EpisodeDataset.open(folder / "dataset").records]


def test_the_whole_loop_runs_in_an_external_suite_and_says_what_its_numbers_are(tmp_path, suite):
    run = tmp_path / "run"
    assert main(["train-vla", *SMALL, f"run_dir={run}"]) == 0
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert (metrics["suite"], metrics["assets_note"]) == ("libero_goal", "toy")
    protocol = metrics["before"]["protocol"]
    assert (protocol["suite"], protocol["initial_states"], protocol["first_index"]) == ("libero_goal", "stored", 48)
    assert metrics["before"]["success"]["n"] == metrics["after"]["success"]["n"] == 2
    assert metrics["verify"]["same_actions_real"]["n"] == 1
    for found in (metrics["rounds"][1]["gates"]["policy"], metrics["verify"]):
        assert found["exploitability"]["n"] == 1
    shown = states_in(run / "stages" / "01-demonstrations")
    assert all(success for _, _, success in shown)
    collected = states_in(run / "stages" / "round-2-1-practice")
    assert {source for source, _, _ in collected} == {"policy", "noisy_expert", "planner", "dream"}
    assert [part["comparison"]["paired"]["n"] for part in metrics["planning"].values()] == [2, 2]
    begun = [state for _, state, _ in shown + collected]
    assert min(begun) >= 50  # drawn; the stored ones are the evaluation's
    assert len({state for _, state, _ in shown}) == 3
    page = (run / "report.html").read_text()
    assert "Assets: toy. No number on this page is a libero_goal result." in page
    assert "the last 2" in page
    suite(boom="a finished run starts no simulator")
    assert main(["train-vla", *SMALL, f"run_dir={run}"]) == 0


def test_no_simulator_waits_while_networks_learn(tmp_path, suite, monkeypatch):
    """Its workers' memory is free then; the next stage that plays starts others."""
    learning, playing = [], []

    def noting(where, found, name):
        original = getattr(where, name)

        def noted(*given, **named):
            result = original(*given, **named)
            found.append(simulators())
            return result

        monkeypatch.setattr(where, name, noted)

    for where, name in ((stages, "learn_policy"), (loop, "learn_world_model"), (stages, "improve")):
        noting(where, learning, name)
    noting(external_suite.ExternalTrainingSuite, playing, "record")
    assert main(["train-vla", *SMALL, f"run_dir={tmp_path / 'run'}"]) == 0
    assert learning == [0] * 5  # the clone, and world model and policy of two rounds
    assert min(playing) > 0


def simulators():
    """How many workers this process has."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    running = [pid for found in children for pid in found.read_text().split()]
    return sum(b"boot.py" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in running)


def test_demonstrations_may_be_given_and_must_fit(tmp_path, suite, write_libero_file, capsys):
    """LIBERO's own files become a dataset, the dataset demonstrates; what does not fit is named before anything is learned."""
    write_libero_file(tmp_path / "files" / "reach_up_demo.hdf5", task="reach_up", demos=2, size=SIZE)
    collect = ["suite=libero_goal", "expert_episodes=0", f"image_size={SIZE}", f"demonstrations={tmp_path / 'files'}"]
    assert main(["collect", *collect, f"run_dir={tmp_path / 'data'}"]) == 0
    given = ["train-vla", *SMALL, f"data={tmp_path / 'data' / 'dataset'}", f"run_dir={tmp_path / 'run'}"]
    suite(boom="it got as far as the simulator")
    assert main(given) == 2
    assert "it got as far as the simulator" in capsys.readouterr().err  # the policy is cloned, then measured
    assert (tmp_path / "run" / "stages" / "02-policy" / "stage.json").exists()
    first = json.loads((tmp_path / "run" / "stages" / "01-demonstrations" / "stage.json").read_text())["summary"]
    assert first["success"]["demonstrations"] | {"k": 2, "n": 2} == first["success"]["demonstrations"]
    for token, message in (("tasks=[reach_right]", "data: "), ("policy.image_size=32", "policy.image_size is 32")):
        tokens = [t for t in given[1:-1] if t.split("=")[0] != token.split("=")[0]]
        assert main(["train-vla", *tokens, token, f"run_dir={tmp_path / token}"]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")


def test_demonstrations_of_others_may_be_given(tmp_path, suite, libero_demo, publish_lerobot, capsys):
    """A LeRobotDataset of two tasks, of which ``worldrl.json`` chooses the loop's."""
    demos = [libero_demo(n, sentence=("reach up", "pick up the moon")[n % 2]) for n in range(6)]
    folder = publish_lerobot(tmp_path / "theirs", demos)
    given = ["train-vla", *SMALL, f"data={folder}", f"run_dir={tmp_path / 'run'}"]
    suite(boom="it got as far as the simulator")
    assert main(given) == 2
    assert "choose by 'tasks' in its worldrl.json" in " ".join(capsys.readouterr().err.split())
    (folder / "worldrl.json").write_text('{"tasks": {"reach up": "reach_up"}, "success": "every episode"}')
    assert main(given) == 2
    assert "it got as far as the simulator" in capsys.readouterr().err  # the policy is cloned, then measured
    stages = tmp_path / "run" / "stages"
    assert (stages / "02-policy" / "stage.json").exists()
    first = json.loads((stages / "01-demonstrations" / "stage.json").read_text())["summary"]
    assert first["success"]["lerobot"] | {"k": 3, "n": 3} == first["success"]["lerobot"]
    assert any("its action was decided on" in text for text in first["assumed"])


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"demonstrations": 1001}, "demonstrations: 1001 episodes .* 1000 initial states left beside the 10"),
        ({"collection": CollectionSettings(1001, 1, 0)}, r"collection\.policy_episodes"),
        ({"scratch": Scratch(1001)}, r"scratch\.expert_episodes"),
        ({"evaluation": Evaluation(episodes=51)}, r"evaluation\.episodes: .* stores 50"),
        ({"rounds": 2, "collection": CollectionSettings(2, 1001, 0)}, r"collection\.expert_episodes"),
        ({"start": "bundled"}, "start: the bundled world models are of the embedded suite's robot"),
        ({"start": "bundled/world_model_wrist"}, "start: the bundled world models are of the embedded suite's robot"),
        ({"kind": "long"}, "kind: 'long' is of the embedded suite"),
        ({"tasks": ["reach_upp"]}, "did you mean 'reach_up'"),
        ({"tasks": ["reach_up", "reach_up"]}, "named once"),
    ],
)
def test_what_the_suite_cannot_give_is_refused_before_it_is_started(over, message, suite):
    fits = {
        "demonstrations": 2,
        "collection": CollectionSettings(2, 2, 0),
        "scratch": Scratch(2),
        "start": "scratch",
        "rounds": 1,
    }
    with pytest.raises(SettingError, match=message):
        tasks_of(TrainVlaSettings(suite="libero_goal", **{**fits, "evaluation": Evaluation(10), **over}))


@pytest.mark.parametrize("name", ["libero_goal", "libero_spatial"])
def test_the_preset_measures_on_every_stored_state_and_trains_on_none(name, suite):
    settings = compose("train-vla", TrainVlaSettings, {"preset": "libero", "suite": name})
    assert (settings.suite, tasks_of(settings)) == (name, ("reach_right", "reach_up"))
    check_held_out(settings, len(tasks_of(settings)))
    check_policy_fits(settings)
    stored = libero_facts.STORED_STATES
    begun = training_states(find_suite(name), settings.evaluation.episodes)
    assert (settings.evaluation.episodes, begun.start) == (stored, stored)
    measured = compose("benchmark", BenchmarkSettings, {"preset": "libero"})
    assert (measured.first_index, measured.episodes) == (0, stored)
    recorded = compose("collect", CollectSettings, {"preset": "libero"})
    assert recorded.first_index == begun.start


@pytest.mark.parametrize(
    ("asked", "evaluated", "message"),
    [
        ({"demonstrations": 41}, 10, "demonstrations: 41 episodes .* 40 initial states left beside the 10"),
        ({"demonstrations": 1}, 50, r"evaluation\.episodes: .* stores 50 .* training needs some of them, got 50"),
    ],
)
def test_a_suite_that_draws_no_states_divides_its_stored_ones(asked, evaluated, message):
    suite = find_suite("libero_pro_goal_lan")
    assert training_states(suite, 10) == range(40)
    with pytest.raises(SettingError, match=message):
        require_possible(suite, asked, start="scratch", evaluated=evaluated)


def test_without_names_all_tasks_are_meant(suite):
    settings = TrainVlaSettings(
        suite="libero_goal", start="scratch", rounds=1, demonstrations=45, scratch=Scratch(45), collection=CollectionSettings(45, 99, 0),
        evaluation=Evaluation(5),
    )  # fmt: skip
    assert tasks_of(settings) == ("reach_right", "reach_up")


def test_tasks_that_the_expert_does_not_play_are_refused_where_it_is_asked_to(suite, monkeypatch):
    monkeypatch.setitem(libero_facts.UNSCRIPTED, "libero_goal", ("reach_up",))
    monkeypatch.setattr(libero, "libero_tasks", lambda suite: ["reach_right", "reach_up"])
    monkeypatch.setattr(external_suite, "fit_of_loop", lambda *_: Fit.stretch)  # somebody's data are not there
    fits = {
        "suite": "libero_goal",
        "start": "scratch",
        "rounds": 1,
        "evaluation": Evaluation(10),
        "collection": CollectionSettings(2, 0, 0),
    }
    with pytest.raises(SettingError, match=r"demonstrations: .* does not play reach_up; .*tasks=\[reach_right\]"):
        tasks_of(TrainVlaSettings(demonstrations=2, scratch=Scratch(2), **fits))
    with pytest.raises(SettingError, match=r"scratch.expert_episodes: .* does not play reach_up"):
        tasks_of(TrainVlaSettings(data="somebody's", scratch=Scratch(2), **fits))
    with pytest.raises(SettingError, match="choose other tasks"):
        tasks_of(TrainVlaSettings(demonstrations=2, tasks=["reach_up"], scratch=Scratch(2), **fits))
    assert tasks_of(TrainVlaSettings(demonstrations=2, tasks=["reach_right"], scratch=Scratch(2), **fits)) == (
        "reach_right",
    )
    assert len(tasks_of(TrainVlaSettings(data="somebody's", scratch=Scratch(0), **fits))) == 2


def test_a_suite_whose_command_is_the_measured_pose_says_so_and_names_the_one_that_knows_it():
    for name in ("libero_goal", "libero_pro_goal_swap"):
        (note,) = measured_pose_note(name, find_suite(name).embodiment)
        assert f"suite={name}@held" in note
        assert measured_pose_note(f"{name}@held", find_suite(f"{name}@held").embodiment) == []
    (other,) = measured_pose_note("mine", find_suite("libero_goal").embodiment)
    assert "@held" not in other
