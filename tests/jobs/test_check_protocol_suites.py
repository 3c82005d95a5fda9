"""Unit under test: ``worldrl check-protocol`` in ManiSkill's suites, through a tiny suite's workers, and where it is refused."""

import json

import numpy as np
import pytest

import worldrl.rollout.suites.libero as libero
import worldrl.rollout.suites.maniskill as maniskill
from worldrl.cli import main
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.workers.maniskill import facts as maniskill_facts

TASK = "reach_up"


@pytest.fixture
def published(tmp_path, fake_libero, publish_lerobot):
    """Publish the tiny suite's motion as others would, with LIBERO's numbers and ManiSkill's instruction."""
    run = ["collect", "suite=libero_goal", "expert_episodes=2", f"tasks=[{TASK}]", "image_size=16", "workers=1"]
    assert main([*run, f"run_dir={tmp_path / 'collect'}"]) == 0
    episodes = list(EpisodeDataset.open(tmp_path / "collect" / "dataset"))

    def publish(name, change):
        columns = [
            {
                "sentence": "reach for the sky",
                "observation.state": episode.state,
                "observation.command": episode.command,
                "action": np.concatenate([change(episode.action.copy()), episode.action[-1:]]).astype(np.float32),
                "observation.images.image": episode.view("scene"),
            }
            for episode in episodes
        ]
        publish_lerobot(tmp_path / name, columns, fps=20)
        stated = {"robot": "libero", "gripper": {"open": -1, "closed": 1}, "success": "every episode"}
        (tmp_path / name / "worldrl.json").write_text(json.dumps(stated))
        return tmp_path / name

    return publish


def check(data, *tokens):
    run = data.parent / f"check-{data.name}"
    assert main(["check-protocol", f"data={data}", f"run_dir={run}", "suite=maniskill_cubes", *tokens]) == 0
    return json.loads((run / "result.json").read_text())["metrics"]


def half(action):
    action[:, :3] *= 0.5
    return action


def test_demonstrations_are_replayed_in_maniskills_suites(published, monkeypatch):
    """Only the launch of the worker and the list of tasks are not ManiSkill's."""
    monkeypatch.setitem(maniskill_facts.TASKS, TASK, maniskill_facts.TaskFacts("reach for the sky", 50))
    monkeypatch.setitem(maniskill_facts.SUITES, "maniskill_cubes", (TASK,))
    monkeypatch.setattr(maniskill, "maniskill_launch", lambda suite, **_: libero.libero_launch("libero_goal"))
    metrics = check(published("sound", lambda action: action))
    assert metrics["fits"], metrics["verdict"]
    assert metrics["as_recorded"] is None  # others' folders do not say where they began
    assert [item["family"] for item in check(published("half", half))["off"]] == ["position scale"]


@pytest.mark.parametrize("suite", ["robotwin_clean", "isaac_lift"])
def test_other_suites_are_refused_with_what_is_covered(suite, tmp_path, capsys):
    assert main(["check-protocol", f"data={tmp_path}", f"suite={suite}"]) == 2
    said = capsys.readouterr().err
    assert f"suite: {suite} is not covered" in said
    assert "the embedded suite (one arm and two), in LIBERO's and in ManiSkill's" in said
