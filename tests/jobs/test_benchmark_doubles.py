"""``worldrl benchmark`` end to end on the doubles of RoboTwin and Isaac Lab: real worker processes, a real policy or agent, films of failures.

Units under test: ``jobs/benchmark.py``, ``rollout/suite_episodes.py``, ``rollout/vector_agent.py``. None of it ran against the real simulators.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

import worldrl.rollout.suites.isaac as isaac_suite
import worldrl.rollout.suites.libero as libero_suite
import worldrl.rollout.suites.maniskill as maniskill_suite
import worldrl.rollout.suites.robotwin as robotwin_suite
from worldrl.cli import main
from worldrl.core.actions import TOOL_ACTIONS, suite_actions
from worldrl.core.rng import initial_weights
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.report.store import load_report_data
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.bc import Bc, BcConfig
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.real.embedded import embedded_embodiment
from worldrl.rollout.suites.robotwin import TARGET
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.workers.robotwin import facts as robotwin_facts

DOUBLES = Path(__file__).parents[1] / "workers"
make_checkout = load_file("robotwin_double", DOUBLES / "robotwin_double.py").make_checkout
fake = load_file("fake_network", DOUBLES.parent / "policies" / "fake_network.py")
TWO_ARMS = embedded_embodiment(["BimanualOpenDrawer"]).actions


def save_policy(folder, actions):
    """An untrained policy that never closes a gripper: what it tries fails."""
    low, high = (torch.from_numpy(bound) / 4 for bound in actions.bounds)
    low[list(actions.grippers)] = high[list(actions.grippers)] = actions.gripper_open
    zeros = torch.zeros(actions.size)
    small = {"image_size": 16, "chunk_length": 4, "bins": 5, "width": 8, "blocks": 1, "keypoints": 2}
    with initial_weights(0, "policy"):
        statistics = PolicyStatistics(low, high, zeros, zeros + 1, actions)
        TokenPolicy(TokenPolicyConfig(**small, text_width=8, hidden=16), statistics).save(folder)
    return folder


@pytest.fixture
def robotwin(monkeypatch, tmp_path):
    """RoboTwin's launch finds the double's checkout; everything else is the real path."""

    def launch(suite, *, cameras):
        options = {
            "suite": suite,
            "checkout": str(make_checkout(tmp_path / "RoboTwin")),
            "seeds": str(tmp_path / "seeds"),
        }
        return Launch(suite, sys.executable, TARGET, {**options, "cameras": list(cameras)})

    monkeypatch.setattr(robotwin_suite, "robotwin_launch", launch)


@pytest.fixture
def isaac(monkeypatch):
    """Isaac's launch starts the double."""

    def launch(suite, *, num_envs, cameras, image_size):
        options = {"suite": suite, "num_envs": num_envs, "cameras": list(cameras), "image_size": image_size}
        return Launch(suite, sys.executable, f"{DOUBLES / 'isaac_double.py'}:Double", options)

    monkeypatch.setattr(isaac_suite, "isaac_launch", launch)


def benchmark(policy, folder, *tokens):
    code = main(["benchmark", f"policy={policy}", f"run_dir={folder}", "workers=1", "envs=2", *tokens])
    return code, json.loads((folder / "result.json").read_text())["metrics"] if code == 0 else {}


def test_a_two_armed_policy_moves_over_by_changing_one_word(tmp_path, robotwin):
    policy = save_policy(tmp_path / "policy", TWO_ARMS)
    for name, word in (("here", "tasks=[BimanualOpenDrawer]"), ("there", "suite=robotwin_clean")):
        code, metrics = benchmark(policy, tmp_path / name, word, "episodes=1", "failures=1")
        assert code == 0
        assert metrics["success"] | {"k": 0, "n": 1} == metrics["success"]
        (strip,) = load_report_data(tmp_path / name).filmstrips
        assert list(strip.rows) == ["head"]
    here, there = (EvalResult.load(tmp_path / name) for name in ("here", "there"))
    assert here.protocol.actions.names == there.protocol.actions.names
    assert there.protocol.actions == suite_actions({"joints": robotwin_facts.joints()})
    assert (here.protocol.cameras, there.protocol.cameras) == (("head",), ("head",))
    assert there.outcomes[0].steps == 7  # RoboTwin's limit of the task


def test_isaacs_failures_are_filmed_too(tmp_path, isaac):
    policy = save_policy(tmp_path / "policy", TOOL_ACTIONS)
    tokens = ("suite=isaac_stack", "episodes=2", "failures=2", "videos=1")
    code, metrics = benchmark(policy, tmp_path / "run", *tokens)
    assert code == 0
    assert (metrics["success"]["k"], metrics["success"]["n"]) == (0, 2)
    assert len(load_report_data(tmp_path / "run").filmstrips) == 2
    assert len(list((tmp_path / "run" / "videos").glob("*.mp4"))) == 1


def save_agent(folder, *, size=6, motion=(1.0, 0, 0, 0, 0, 0, 0), **space):
    """An agent that moves alike whatever it sees; ``size`` numbers are what the double shows."""
    facts = Facts(torch.zeros(size), torch.ones(size), len(motion))
    with initial_weights(0, "agent"):
        agent = Bc(BcConfig(hidden=(4,)), facts)
    last = [layer for layer in agent.actor.net if isinstance(layer, torch.nn.Linear)][-1]
    torch.nn.init.zeros_(last.weight)
    last.bias.data = 5 * torch.tensor(motion)
    bounds = {"trained_on": "worldrl/Isaac-v0", "low": [-1.0] * len(motion), "high": [1.0] * len(motion)}
    agent.save(folder, space=bounds | space)
    return folder


def test_an_offline_agent_plays_isaacs_state_suites_and_its_vector_decides(tmp_path, isaac):
    opens, stays = save_agent(tmp_path / "opens"), save_agent(tmp_path / "stays", motion=(0.0,) * 7)
    for policy, solved in ((opens, 2), (stays, 0)):
        code, metrics = benchmark(policy, tmp_path / f"run-{policy.name}", "suite=isaac_drawer", "episodes=2")
        assert code == 0
        assert (metrics["success"]["k"], metrics["success"]["n"]) == (solved, 2)
    assert "isaac_drawer has no cameras" in metrics["images_note"]  # failures without cameras cost no result
    runs = [EvalResult.load(tmp_path / f"run-{name}") for name in ("opens", "stays")]
    assert runs[0].outcomes[0].steps == 7  # 0.05 m each step, full speed
    assert runs[0].protocol.hash == runs[1].protocol.hash


def test_an_agent_of_another_size_or_range_is_refused_with_both_specs(tmp_path, capsys, isaac):
    told = refused(capsys, save_agent(tmp_path / "wide", size=31), "isaac_reach", tmp_path)
    assert "policy (31,) | policy (6,)" in told
    told = refused(capsys, save_agent(tmp_path / "far", low=[-2.0] * 7, high=[2.0] * 7), "isaac_lift", tmp_path)
    assert "action (7,) in [-2, 2] | action (7,) in [-1, 1]" in told
    assert "external suites for this policy: none" in told


def test_an_agent_finds_no_vector_elsewhere_and_nothing_starts(tmp_path, capsys, nothing_starts):
    agent = save_agent(tmp_path / "agent")
    told = refused(capsys, agent, "libero_goal", tmp_path)
    assert "the agent, of worldrl/Isaac-v0 | the suite shows policy (6,) | policy not shown" in told
    assert told.endswith("external suites for this policy: isaac_reach, isaac_lift, isaac_drawer, isaac_stack")
    assert "policy (6,) | policy not shown" in refused(capsys, agent, "embedded", tmp_path)


@pytest.fixture
def nothing_starts(monkeypatch):
    """A suite whose workers are launched is one too many."""
    for module in (robotwin_suite, isaac_suite, maniskill_suite, libero_suite):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, f"{name}_launch", lambda *_, **__: pytest.fail("a worker was launched"))


def refused(capsys, policy, suite, tmp_path):
    assert main(["benchmark", f"policy={policy}", f"suite={suite}", f"run_dir={tmp_path / suite}"]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_policy_that_does_not_fit_is_refused_with_both_specs_before_any_worker_starts(
    tmp_path, capsys, nothing_starts
):
    one, two = (save_policy(tmp_path / name, spec) for name, spec in (("one", TOOL_ACTIONS), ("two", TWO_ARMS)))
    told = refused(capsys, one, "robotwin_clean", tmp_path)
    assert "does not fit the suite robotwin_clean" in told
    assert "command (7,) | command (14,) action (7,) | action (14,)" in told
    assert "external suites for this policy: libero_spatial," in told
    assert "isaac_stack" in told
    assert "isaac_lift" not in told
    told = refused(capsys, two, "libero_goal", tmp_path)
    assert "action (14,) | action (7,)" in told
    assert told.endswith("external suites for this policy: robotwin_clean, robotwin_randomised")
    assert "image (16, 16, 3) | image not shown" in refused(capsys, one, "isaac_lift", tmp_path)


def test_a_camera_that_a_suite_lacks_is_reported_beside_those_it_has(tmp_path, capsys, nothing_starts):
    sees = {"type": "VISUAL", "shape": [3, 16, 16]}
    cameras = {"observation.images.image": sees, "observation.images.image2": sees}
    moves = {"observation.state": {"type": "STATE", "shape": [7]}}
    policy = fake.publish(tmp_path / "wrist", input_features={**cameras, **moves})
    told = refused(capsys, policy, "maniskill", tmp_path)
    assert "observation.images.image2 (16, 16, 3) | wrist_image not shown" in told
    assert "observation.images.image (16, 16, 3) | image (16, 16, 3)" in told
    assert "unknown camera" not in told
    assert "libero_goal" in told
