"""Unit under test: ``worldrl collect suite=libero_...`` and what can be done with it, through a tiny suite's workers."""

import json

import numpy as np
import pytest
import torch

import worldrl.rollout.suites.libero as libero
import worldrl.rollout.suites.maniskill as maniskill
from worldrl.cli import main
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.journal import read_journal
from worldrl.jobs.vla.plan import planned
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.rollout.real.specs import spec_of
from worldrl.settings import compose
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.maniskill import facts as maniskill_facts

SIZE = 16


def collect(folder, *tokens):
    given = ["suite=libero_goal", "hold_steps=2", f"run_dir={folder}"]
    usual = {"expert_episodes": 3, "image_size": SIZE}
    given += [f"{name}={value}" for name, value in usual.items() if not any(t.startswith(name) for t in tokens)]
    return main(["collect", *given, *tokens])


def contents(folder):
    return [(spec_of(record.meta).key, record.content) for record in read_journal(folder / "dataset").records]


def test_recordings_do_not_depend_on_workers_or_interruption_and_keep_their_order(tmp_path, fake_libero, capsys):
    assert collect(tmp_path / "plain", "workers=1", "envs_per_worker=1") == 0
    assert "assets: toy; this is not a libero_goal result" in capsys.readouterr().err
    assert collect(tmp_path / "shared", "workers=2", "envs_per_worker=2") == 0
    fake_libero(fault={"task": "reach_up", "init_id": 1, "at": 2, "kind": "raise"})
    assert collect(tmp_path / "cut", "workers=1", "envs_per_worker=2") == 2
    assert 3 <= len(contents(tmp_path / "cut")) < 6
    fake_libero()
    assert collect(tmp_path / "cut", "workers=1", "envs_per_worker=2") == 0
    assert contents(tmp_path / "plain") == contents(tmp_path / "shared") == contents(tmp_path / "cut")
    keys = [key for key, _ in contents(tmp_path / "plain")]
    assert keys == [(task, index, index, 0) for task in ("reach_right", "reach_up") for index in range(3)]
    metrics = json.loads((tmp_path / "plain" / "result.json").read_text())["metrics"]
    assert (metrics["suite"], metrics["assets_note"]) == ("libero_goal", "toy")
    assert metrics["tasks"]["reach_up"]["expert"]["k"] == 3


def test_maniskill_is_recorded_and_trained_on_by_the_same_contract(tmp_path, fake_libero, monkeypatch):
    """Its launch is the tiny suite's here; the suite's own facts are ManiSkill's."""
    task = maniskill_facts.TaskFacts("reach for the sky", 50, expert=True)
    monkeypatch.setitem(maniskill_facts.TASKS, "reach_up", task)
    monkeypatch.setitem(maniskill_facts.SUITES, "maniskill_cubes", ("reach_up",))
    monkeypatch.setattr(maniskill, "maniskill_launch", lambda suite, **_: libero.libero_launch("libero_goal"))
    tokens = ["expert_episodes=2", f"image_size={SIZE}", "workers=1", f"run_dir={tmp_path}"]
    assert main(["collect", "suite=maniskill_cubes", *tokens]) == 0
    dataset = EpisodeDataset.open(tmp_path / "dataset")
    assert (dataset.header.suite, len(dataset)) == ("maniskill_cubes", 2)
    assert (dataset.embodiment.position_scale, dataset.embodiment.rotation_scale) == (0.1, 0.1)
    given = {
        "suite": "maniskill_cubes",
        "tasks": "[reach_up]",
        "start": "scratch",
        "preset": "tiny",
        "run_dir": str(tmp_path / "run"),
    }
    plan = planned(compose("train-vla", TrainVlaSettings, given), torch.device("cpu"))
    assert (plan.suite.embodiment, plan.horizons) == (dataset.embodiment, {"reach_up": 50})


def test_tasks_that_the_expert_does_not_play_are_refused_before_the_start(tmp_path, fake_libero, monkeypatch, capsys):
    monkeypatch.setitem(libero_facts.UNSCRIPTED, "libero_goal", ("reach_up",))
    monkeypatch.setattr(libero, "libero_tasks", lambda suite: ["reach_right", "reach_up"])
    fake_libero(boom="a worker was started")
    assert collect(tmp_path / "run") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "expert_episodes: the scripted expert of libero_goal does not play reach_up; select others with tasks=[" in told
    )


def test_a_recording_holds_what_the_suite_said(tmp_path, fake_libero):
    assert collect(tmp_path, "workers=1", "envs_per_worker=1", "tasks=[reach_up]", "first_index=7") == 0
    dataset = EpisodeDataset.open(tmp_path / "dataset")
    assert [spec_of(record.meta).init_id for record in dataset.records] == [7, 8, 9]
    episode = dataset[0]
    assert (episode.instruction, episode.task) == ("reach up", "reach_up")
    assert episode.success
    assert len(episode) == episode.first_success + 2
    # The fake suite moves its point by 0.05 m per action: state and action belong to the same step.
    np.testing.assert_allclose(np.diff(episode.state[:, :2], axis=0), 0.05 * episode.action[:, :2], atol=1e-6)
    assert (dataset.embodiment.position_scale, dataset.embodiment.control_hz) == (0.05, 20.0)


def test_a_policy_is_cloned_from_it_measured_on_other_states_and_its_data_checked(tmp_path, fake_libero, capsys):
    assert collect(tmp_path / "data", "workers=1", "envs_per_worker=2") == 0
    model = ["preset=tiny", f"model.image_size={SIZE}", "training.steps=4"]
    data = tmp_path / "data" / "dataset"
    assert main(["train-policy", f"data=[{data}]", *model, f"run_dir={tmp_path / 'policy'}"]) == 0
    tokens = [f"policy={tmp_path / 'policy' / 'policy'}", "episodes=2", "first_index=40", "workers=1", "envs=2"]
    assert main(["benchmark", "suite=libero_goal", *tokens, f"run_dir={tmp_path / 'run'}"]) == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["success"]["n"] == 4
    assert metrics["protocol"]["image_size"] == SIZE
    assert metrics["spent"]["decide_s"] > 0 < metrics["spent"]["simulate_s"]
    assert "Failed" not in (tmp_path / "run" / "report.html").read_text()
    assert metrics["training_states"] == {"k": 0, "n": 4}
    refused = [*tokens[:1], "episodes=4", "first_index=1", "workers=1", "envs=2"]
    assert (
        main(["benchmark", "suite=libero_goal", *refused, "refuse_training_states=true", f"run_dir={tmp_path / 'no'}"])
        == 2
    )
    assert "4 of 8 episodes begin at initial states" in capsys.readouterr().err.replace("\n", " ")
    assert main(["benchmark", "suite=libero_goal", *refused, f"run_dir={tmp_path / 'seen'}"]) == 0
    assert json.loads((tmp_path / "seen" / "result.json").read_text())["metrics"]["training_states"] == {"k": 4, "n": 8}
    note = "4 of 8 episodes begin at initial states that the policy was trained on"
    assert f"warning: {note}" in capsys.readouterr().err
    assert note in (tmp_path / "seen" / "report.html").read_text()
    check = ["check-protocol", f"data={data}", "suite=libero_goal", f"run_dir={tmp_path / 'check'}"]
    assert main(check) == 0
    assert json.loads((tmp_path / "check" / "result.json").read_text())["metrics"]["fits"]


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("wander_episodes=1", "has the sources expert_episodes and policy_episodes"),
        ("styles=[dim]", "of the embedded suite"),
        ("first_index=1048", "stores 50 initial states per task, and draws 1000 more"),
        ("tasks=[reach_upp]", "did you mean 'reach_up'"),
    ],
)
def test_what_the_suite_does_not_have_is_refused(token, message, tmp_path, fake_libero, capsys):
    assert collect(tmp_path, "workers=1", "envs_per_worker=1", token) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_liberos_files_are_one_more_source_and_need_no_simulator(tmp_path, fake_libero, write_libero_file, capsys):
    for task in ("reach_up", "reach_right"):
        write_libero_file(tmp_path / "files" / f"{task}_demo.hdf5", task=task, demos=2, size=SIZE)
    files = f"demonstrations={tmp_path / 'files'}"
    assert collect(tmp_path / "both", files, "workers=1", "expert_episodes=1") == 0
    fake_libero(boom="a simulator was started")
    assert collect(tmp_path / "read", files, "expert_episodes=0", "tasks=[reach_up]") == 0
    records = EpisodeDataset.open(tmp_path / "both" / "dataset").records
    found = [(record.task, record.source, spec_of(record.meta).index, record.success) for record in records]
    files_first = [(task, "demonstrations", n, True) for task in ("reach_right", "reach_up") for n in (0, 1)]
    assert found == [*files_first, ("reach_right", "expert", 0, True), ("reach_up", "expert", 0, True)]
    assert [record.task for record in EpisodeDataset.open(tmp_path / "read" / "dataset").records] == ["reach_up"] * 2
    metrics = json.loads((tmp_path / "both" / "result.json").read_text())["metrics"]
    assert metrics["tasks"]["reach_up"]["demonstrations"]["n"] == 2
    assert collect(tmp_path / "other", files, "expert_episodes=0", "image_size=32") == 2
    assert "image_size=16" in capsys.readouterr().err.replace("\n", " ")
    assert main(["collect", files, f"run_dir={tmp_path / 'embedded'}"]) == 2
    assert "give suite=libero_..." in capsys.readouterr().err


def test_a_policy_of_the_embedded_suite_is_not_run_on_libero_without_a_word(tmp_path, fake_libero, capsys):
    """Both take seven numbers of one tool; what 1 means, and from where it is counted, differs."""
    data, policy = tmp_path / "data", tmp_path / "policy"
    recorded = ["tasks=[PickRedCube]", "expert_episodes=2", "noisy_episodes=0", "workers=0", "envs_per_worker=1"]
    assert main(["collect", *recorded, f"image_size={SIZE}", f"run_dir={data}"]) == 0
    model = ["preset=tiny", f"model.image_size={SIZE}", "training.steps=4"]
    assert main(["train-policy", f"data=[{data / 'dataset'}]", *model, f"run_dir={policy}"]) == 0
    tokens = [f"policy={policy / 'policy'}", "episodes=1", "workers=1", "envs=1", "tasks=[reach_up]"]
    assert main(["benchmark", "suite=libero_goal", *tokens, f"run_dir={tmp_path / 'run'}"]) == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    differing = {"position_scale": [0.02, 0.05], "rotation_scale": [0.1, 0.5]}
    assert differing.items() <= metrics["conventions"]["differing"].items()
    assert metrics["conventions"]["trained_on"] == ["worldrl"]
    assert {"gripper", "control_hz"}.isdisjoint(metrics["conventions"]["differing"])
    note = "position_scale (0.02 there, 0.05 here)"
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "run" / "report.html").read_text()


def test_liberos_own_files_are_refused_where_the_controller_keeps_a_goal(tmp_path, capsys):
    tokens = [
        "suite=libero_goal@held",
        f"demonstrations={tmp_path}",
        "expert_episodes=0",
        f"run_dir={tmp_path / 'data'}",
    ]
    assert main(["collect", *tokens]) == 2
    assert "give suite=libero_goal, or record the expert" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "data").exists()
