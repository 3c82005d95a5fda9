"""``collect`` and ``train-vla`` on the doubles of RoboTwin and Isaac Lab: real worker processes, a real policy.

Units under test: ``jobs/data/collect_suite.py``, ``jobs/vla/external_suite.py``, ``rollout/suites/robotwin.py`` and
``isaac.py``. None of it ran against the real simulators.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import worldrl.rollout.suites.isaac as isaac_suite
import worldrl.rollout.suites.robotwin as robotwin_suite
from worldrl.cli import main
from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import ArtefactError, WorkerEnvironmentError
from worldrl.core.image_fit import Fit
from worldrl.core.rng import initial_weights
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.trained_on import differing_conventions, trained_on
from worldrl.jobs.vla.plan import planned
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.suites.registry import find_suite
from worldrl.settings import compose
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.workers.robotwin import facts as robotwin_facts

DOUBLES = Path(__file__).parents[1] / "workers"
make_checkout = load_file("robotwin_double", DOUBLES / "robotwin_double.py").make_checkout
SMALL = (
    "preset=tiny", "tasks=[]", "start=scratch", "rounds=1", "workers=1", "envs_per_worker=1", "policy.image_size=16", "world_model.codec.image_size=16",
    "cloning.steps=3",
    "cloning.checkpoint_every=1", "scratch.expert_episodes=0", "collection.expert_episodes=0", "collection.policy_episodes=6",
    "scratch.training.codec_steps=2", "scratch.training.steps=2", "improvement.self_training.rollouts=2",
    "improvement.starts_per_task=1", "evaluation.episodes=1", "evaluation.verify=1", "held_out=0.5",
)  # fmt: skip


def save_policy(folder, actions, *, closed, fit=Fit.refuse):
    """An untrained policy whose grippers do the same whatever it sees."""
    low, high = (torch.from_numpy(bound) / 4 for bound in actions.bounds)
    low[list(actions.grippers)] = high[list(actions.grippers)] = (
        actions.gripper_closed if closed else actions.gripper_open
    )
    zeros = torch.zeros(actions.size)
    small = {"image_size": 16, "chunk_length": 4, "bins": 5, "width": 8, "blocks": 1, "keypoints": 2}
    with initial_weights(0, "policy"):
        statistics = PolicyStatistics(low, high, zeros, zeros + 1, actions)
        TokenPolicy(TokenPolicyConfig(**small, text_width=8, hidden=16, fit=fit), statistics).save(folder)
    return folder


@pytest.fixture
def robotwin(monkeypatch, tmp_path):
    """RoboTwin's environment is this one, with the double's checkout; everything else is the real path."""
    record = {"checkout": str(make_checkout(tmp_path / "RoboTwin"))}
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    found = SimpleNamespace(python=sys.executable, record=record)
    monkeypatch.setattr(robotwin_suite, "find_environment", lambda _: found)
    return find_suite("robotwin_clean")


@pytest.fixture
def isaac(monkeypatch):
    """Isaac's launch starts the double."""

    def launch(suite, *, num_envs, cameras, image_size):
        options = {"suite": suite, "num_envs": num_envs, "cameras": list(cameras), "image_size": image_size}
        return Launch(suite, sys.executable, f"{DOUBLES / 'isaac_double.py'}:Double", options)

    monkeypatch.setattr(isaac_suite, "isaac_launch", launch)


def collect(suite, run, *tokens):
    return main(
        ["collect", f"suite={suite}", f"run_dir={run}", "workers=1", "envs_per_worker=2", "image_size=16", *tokens]
    )


def test_robotwin_is_recorded_with_its_joints_tasks_and_the_policys_fit(tmp_path, robotwin):
    policy = save_policy(tmp_path / "policy", robotwin.spec.actions, closed=True, fit=Fit.letterbox)
    tokens = [f"policy={policy}", "policy_episodes=2", "expert_episodes=0", "wrist=true"]
    assert collect("robotwin_clean", tmp_path / "run", *tokens) == 0
    dataset = EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert (dataset.header.suite, dataset.header.fit, dataset.fps) == ("robotwin_clean", Fit.letterbox, 10)
    assert dataset.cameras == ("head", "left_wrist", "right_wrist")
    assert dataset.embodiment == robotwin.embodiment
    assert dataset.tasks() == ("close_gripper",)
    episode = dataset[0]
    assert episode.success
    assert (episode.main_view[0, [0, -1]] == 0).all()  # black bars above and below
    assert (episode.main_view[0, 8] == 10).all()
    commands = integrate_commands(
        robotwin.embodiment, torch.from_numpy(episode.command[:1]), torch.from_numpy(episode.action[None])
    )
    np.testing.assert_array_equal(commands[0].numpy(), episode.command[1:])  # every target is reached within its step
    np.testing.assert_array_equal(episode.state[1:], episode.command[1:])


def test_what_is_learned_on_robotwin_means_there_what_it_means_here(tmp_path, robotwin):
    policy = save_policy(tmp_path / "policy", robotwin.spec.actions, closed=True)
    assert (
        collect("robotwin_clean", tmp_path / "run", f"policy={policy}", "policy_episodes=1", "expert_episodes=0") == 0
    )
    known = trained_on([EpisodeDataset.open(tmp_path / "run" / "dataset")])
    assert (known["fit"], list(known["conventions"])) == ("stretch", ["robotwin_clean"])
    assert known["states"]["robotwin_clean"]["close_gripper"] == [[0, 0, 1]]
    here = SimpleNamespace(conventions={}, suite="robotwin_clean", tasks=("close_gripper",), control_hz=10.0)
    assert differing_conventions(here, known["conventions"]) == ({}, [])


@pytest.mark.parametrize("suite", ["robotwin_clean", "isaac_stack"])
def test_without_an_expert_the_error_says_what_is_possible(suite, tmp_path, robotwin, isaac, capsys):
    assert collect(suite, tmp_path / "run", "expert_episodes=1") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"expert_episodes: {suite} has no scripted expert that acts step by step" in told
    assert "policy_episodes=N), or recordings (data=FOLDER in train-vla)" in told
    assert main(["train-vla", f"suite={suite}", *SMALL, "demonstrations=2", f"run_dir={tmp_path / 'vla'}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"demonstrations: {suite} has no scripted expert" in told
    assert "data=FOLDER" in told


def test_a_checkout_without_its_table_is_one_line(tmp_path, robotwin):
    (tmp_path / "RoboTwin" / robotwin_facts.LIMITS).write_text("- a list\n")
    robotwin_suite.task_limits.cache_clear()
    with pytest.raises(WorkerEnvironmentError, match="holds no table of tasks"):
        robotwin.tasks()
    (tmp_path / "RoboTwin" / robotwin_facts.LIMITS).unlink()
    robotwin_suite.task_limits.cache_clear()
    with pytest.raises(WorkerEnvironmentError, match="cannot be read"):
        robotwin.tasks()


def test_isaacs_stack_is_recorded_and_a_task_without_images_is_not(tmp_path, isaac, capsys):
    policy = save_policy(tmp_path / "policy", TOOL_ACTIONS, closed=False)
    tokens = [f"policy={policy}", "policy_episodes=2", "expert_episodes=0"]
    assert collect("isaac_stack", tmp_path / "run", *tokens, "wrist=true") == 0
    dataset = EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert (dataset.header.suite, dataset.cameras, dataset.fps) == ("isaac_stack", ("scene", "wrist"), 20)
    assert (dataset.header.fit, len(dataset), len(dataset[0])) == (Fit.refuse, 2, 600)
    assert dataset.embodiment.position_scale == 0.05
    assert collect("isaac_lift", tmp_path / "lift", *tokens) == 2
    assert "isaac_lift has the cameras []" in capsys.readouterr().err


def test_the_loop_runs_on_robotwin_from_recordings_of_a_policy(tmp_path, robotwin, capsys):
    policy = save_policy(tmp_path / "policy", robotwin.spec.actions, closed=True, fit=Fit.crop)
    tokens = [f"policy={policy}", "policy_episodes=2", "expert_episodes=0"]
    assert collect("robotwin_clean", tmp_path / "demos", *tokens) == 0
    run, data = tmp_path / "run", tmp_path / "demos" / "dataset"
    given = ["suite=robotwin_clean", f"data={data}", f"run_dir={run}", *SMALL]
    assert main(["train-vla", *given]) == 0, capsys.readouterr().err
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics["suite"] == "robotwin_clean"
    recorded = EpisodeDataset.open(run / "stages" / "round-1-1-practice" / "dataset")
    assert recorded.header.fit is Fit.crop  # as the demonstrations
    assert (run / "report.html").exists()


def test_the_loop_on_isaacs_stack_has_its_robot_and_limits(tmp_path, isaac):
    given = {"suite": "isaac_stack", "preset": "tiny", "tasks": "[]", "run_dir": str(tmp_path), "start": "scratch"}
    given |= {"data": str(tmp_path / "data"), "scratch.expert_episodes": "0", "collection.expert_episodes": "0"}
    with pytest.raises(ArtefactError, match="data"):  # it is opened for the fit of its images
        planned(compose("train-vla", TrainVlaSettings, given), torch.device("cpu"))
    policy = save_policy(tmp_path / "policy", TOOL_ACTIONS, closed=False)
    given |= {"supervised": str(policy)}
    plan = planned(compose("train-vla", TrainVlaSettings, given), torch.device("cpu"))
    suite = find_suite("isaac_stack")
    assert (plan.suite.embodiment, plan.horizons) == (suite.embodiment, {suite.tasks()[0]: 600})
    assert plan.suite.options.fit is Fit.stretch
