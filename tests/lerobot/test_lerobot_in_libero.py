"""The real lerobot in the real LIBERO: what a policy is shown and what its actions do, beside hf-libero's environment alone.

Run ``worldrl setup lerobot`` and ``worldrl setup libero`` once, then ``pytest -m 'lerobot and libero'``. Units under test:
``policies/lerobot_inputs.py``, ``workers/libero_observation.py``, ``rollout/suite_episodes.py`` between the two workers.
"""

import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from worldrl.cli import main
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.policies.lerobot.worker import LerobotWorker
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.suites.libero import libero_launch
from worldrl.simulators.environments import find_environment
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.libero.states import load_suite

pytestmark = [pytest.mark.lerobot, pytest.mark.libero]
TASK, SIZE, L = "put_the_bowl_on_the_plate", 64, 4
HORIZON = 2 * L
"""Shorter than LIBERO's: nothing is measured here."""


@pytest.fixture
def libero():
    try:
        return find_environment("libero")
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))


def play_bare(libero, folder, actions):
    """What LIBERO gives at stored state 0 and after these actions, nothing of worldrl in between."""
    launch = libero_launch("libero_goal", cameras=("scene", "wrist"))
    state = load_suite(libero.folder / "initial_states" / "libero_goal.npz", "libero_goal")[TASK][0]
    told, found = folder / "told.npz", folder / "found.npz"
    np.savez(told, task=TASK, state=state, actions=actions, size=SIZE, assets=launch.options["assets"])
    script = Path(__file__).parent / "bare_libero.py"
    command = [launch.python, "-I", str(script), str(told), str(found)]
    ran = subprocess.run(
        command,
        env={**os.environ, **launch.variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return np.load(found)


def published_state(given, row):
    """Position, axis-angle and fingers as OpenVLA's and lerobot's evaluations put them together: the angle may exceed π."""
    x, y, z, w = given["robot0_eef_quat"][row]
    turned = np.array([x, y, z]) * 2 * math.acos(w) / math.sqrt(1 - w**2)
    return np.concatenate([given["robot0_eef_pos"][row], turned, given["robot0_gripper_qpos"][row]])


@pytest.mark.parametrize("kind", ["act", "smolvla"])
def test_a_published_policy_is_shown_what_libero_gives_and_moves_it(published, libero, kind, tmp_path, monkeypatch):
    decisions, own = [], LerobotWorker.ask

    def ask(worker, kind, arrays=None, **header):
        answer = own(worker, kind, arrays, **header)
        if kind == "act":
            decisions.append((arrays, header["instruction"], answer[1]["action"]))
        return answer

    monkeypatch.setattr(LerobotWorker, "ask", ask)
    monkeypatch.setitem(libero_facts.SUITES, "libero_goal", libero_facts.SuiteFacts(10, HORIZON))
    tokens = (
        "suite=libero_goal",
        f"tasks=[{TASK}]",
        "episodes=1",
        "workers=1",
        "envs=1",
        "failures=0",
        "timeout_s=900",
    )
    assert main(["benchmark", *tokens, f"policy={published / f'libero_{kind}'}", f"run_dir={tmp_path / 'run'}"]) == 0

    assert len(decisions) == HORIZON // L
    assert {tuple(sentence) for _, sentence, _ in decisions} == {("put the bowl on the plate",)}
    given = play_bare(libero, tmp_path, decisions[0][2][0, :L].clip(-1, 1))
    for row, (shown, _, _) in enumerate(decisions):
        for feature, camera in (("image", "agentview_image"), ("image2", "robot0_eye_in_hand_image")):
            picture = shown[f"observation.images.{feature}"]
            assert picture.shape == (1, SIZE, SIZE, 3)
            assert picture.std() > 10
            differing = picture[0].astype(int) - given[camera][row][::-1, ::-1]
            # Edges differ, by 0.8 on average at most; turned otherwise, flipped or mirrored it is above 40.
            assert np.abs(differing).mean() < 2
        np.testing.assert_allclose(shown["observation.state"][0], published_state(given, row), atol=1e-6)
    assert np.abs(decisions[1][0]["observation.state"] - decisions[0][0]["observation.state"]).max() > 1e-3

    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    note = libero.record.get("assets_note", "")
    assert metrics["success"]["n"] == 1
    assert metrics["protocol"]["cameras"] == ["scene", "wrist"]
    assert metrics["assets_note"] == note
    assert bool(note) == (f"({note})" in metrics["protocol"]["conventions"]["assets"])


VLA = (
    "preset=tiny", "suite=libero_goal", f"tasks=[{TASK}]", "shadows=false", "timeout_s=900", "envs_per_worker=1", "policy.image_size=16",
    "policy.chunk_length=4", "world_model.codec.image_size=16", "world_model.dynamics.chunk_length=4", "demonstrations=1",
    "collection.policy_episodes=1", "collection.noise=0.05", "scratch.expert_episodes=3", "scratch.training.codec_steps=2", "scratch.training.steps=2",
    "scratch.training.outcome_steps=2", "improvement.algorithm=grpo", "improvement.starts_per_task=1", "evaluation.episodes=1",
    "evaluation.verify=1", "evaluation.videos=0",
)  # fmt: skip


def test_a_smolvla_goes_through_the_main_job_on_libero_goal(published, libero, tmp_path):
    """At this size nothing is learned: demonstrations, practice, a world model and GRPO in it, all of LIBERO and SmolVLA."""
    given = published / "smolvla"
    assert main(["train-vla", *VLA, f"supervised={given}", f"run_dir={tmp_path}"]) == 0
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert metrics["before"]["protocol"]["suite"] == "libero_goal"
    assert metrics["before"]["success"]["n"] == metrics["after"]["success"]["n"] == 1
    assert metrics["rounds"][0]["collection"]["success"]["policy"]["n"] == 1
    assert policy_facts(tmp_path / metrics["policy"]).kind == "smolvla"
    assert metrics.get("assets_note", "") == libero.record.get("assets_note", "")
