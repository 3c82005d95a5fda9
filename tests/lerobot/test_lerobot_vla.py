"""The main job with the real lerobot: a SmolVLA improves in imagination, from the start to the report.

Run ``worldrl setup lerobot`` once, then ``pytest -m lerobot``. Unit under test: ``worldrl train-vla supervised=FOLDER``.
"""

import json

import pytest
from safetensors.torch import load_file

from worldrl.cli import main
from worldrl.rollout.agents.policy_folder import policy_facts

pytestmark = pytest.mark.lerobot
SMALL = (
    "preset=tiny", "tasks=[PickRedCube]", "policy.image_size=16", "policy.chunk_length=4", "world_model.codec.image_size=16",
    "world_model.dynamics.chunk_length=4", "demonstrations=1", "collection.policy_episodes=1", "scratch.expert_episodes=3",
    "scratch.training.codec_steps=2", "scratch.training.steps=2", "scratch.training.outcome_steps=2", "improvement.algorithm=grpo",
    "improvement.starts_per_task=1", "evaluation.episodes=1", "evaluation.verify=1", "evaluation.videos=0", "timeout_s=900",
)  # fmt: skip


VIEWS = ("cameras=[image,wrist_image]", "state=measured")


@pytest.mark.parametrize(("name", "observed"), [("smolvla", ()), ("two_views", VIEWS)])
def test_a_smolvla_goes_through_the_whole_loop(published, tmp_path, name, observed):
    """At this size nothing is learned in the world model: what goes in and what comes out is lerobot's own folder."""
    given = published / name
    assert main(["train-vla", *SMALL, *observed, f"supervised={given}", f"run_dir={tmp_path}"]) == 0
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    (part,) = metrics["rounds"]
    assert part["collection"]["success"]["policy"]["n"] == 1
    assert metrics["before"]["success"]["n"] == metrics["after"]["success"]["n"] == 1
    assert metrics["verify"]["same_actions_real"]["n"] == 1
    assert (tmp_path / "report.html").is_file()
    improved = tmp_path / metrics["policy"]
    assert (policy_facts(improved).kind, policy_facts(improved).chunk_length) == ("smolvla", 4)
    before, after = (load_file(folder / "model.safetensors") for folder in (given, improved))
    assert before.keys() == after.keys()


@pytest.mark.libero
def test_a_smolvla_of_two_views_and_the_measured_state_goes_through_the_loop_on_libero(published, tmp_path):
    """Two environments of their own at once: LIBERO's simulators and lerobot's network. One success is enough to learn from."""
    small = [setting for setting in SMALL if not setting.startswith("tasks=")]
    suite = (
        "suite=libero_goal",
        "start=scratch",
        "tasks=[turn_on_the_stove]",
        "collection.expert_episodes=1",
        "collection.imagined_episodes=1",
    )
    given = ("run_dir=" + str(tmp_path), f"supervised={published / 'two_views'}")
    assert main(["train-vla", *small, *VIEWS, *suite, *given]) == 0
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert metrics["suite"] == "libero_goal"
    assert metrics["before"]["success"]["n"] == metrics["after"]["success"]["n"] == 1
    assert policy_facts(tmp_path / metrics["policy"]).more == ("wrist_image", "state")
    assert (tmp_path / "report.html").is_file()
