"""Unit under test: ``worldrl.rollout.agents.robot_side``: a policy's numbers and images against those of the robot it learned from."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import WAYS, Fit
from worldrl.core.rng import initial_weights
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.trained_on import merged, trained_on
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.agents.robot_side import RobotSide

NAMES = ["lift.pos", "gripper.pos"]
SIZES = {"image_size": 16, "chunk_length": 2, "width": 8, "blocks": 1, "keypoints": 4, "text_width": 8, "hidden": 16}


@pytest.fixture
def lab(tmp_path, publish_lerobot):
    """Open a recording of a joint in degrees and a gripper between 8 (closed) and 42 (open), images of 24 by 32."""

    def make(name, ends, **more):
        rows = np.arange(20)
        action = np.column_stack([2.0 * rows, np.where(rows % 10 < 5, 42.0, 8.0)]).astype(np.float32)
        images = np.random.default_rng(0).integers(0, 256, (20, 24, 32, 3), np.uint8)
        columns = {
            "sentence": "close",
            "observation.state": action,
            "action": action,
            "observation.images.front": images,
        }
        folder = publish_lerobot(tmp_path / name, [columns], fps=30)
        robot = {
            "names": NAMES,
            "low": [-1.0, 0.0],
            "high": [50.0, 1.0],
            "max_speed": [100.0, 40.0],
            "control_hz": 30.0,
        }
        stated = {
            "robot": {"kind": "joints", **robot},
            "gripper": ends,
            "success": "every episode",
            "image_size": [16, 16],
        }
        (folder / "worldrl.json").write_text(json.dumps({**stated, **more}))
        return EpisodeDataset.open(folder), action, images

    return make


def save(folder, datasets, known, **sizes):
    with initial_weights(0, "policy"):
        policy = TokenPolicy(TokenPolicyConfig(**SIZES, **sizes), PolicyStatistics.from_episodes(list(datasets[0])))
    policy.trained_on = known
    policy.save(folder)
    return folder


@pytest.mark.parametrize("fit", WAYS)
def test_what_leaves_the_policy_is_in_the_robots_units_and_what_enters_in_the_policys(fit, tmp_path, lab):
    data, recorded, images = lab("so101", {"open": 42, "closed": 8}, pictures="turned", fit=fit)
    side = RobotSide.of(save(tmp_path / "policy", [data], trained_on([data])))
    episode = data[0]
    np.testing.assert_allclose(side.numbers(recorded)[:-1], episode.action, atol=1e-6)
    np.testing.assert_allclose(side.targets(episode.action), recorded[:-1], rtol=1e-6)
    np.testing.assert_array_equal(side.image(images[3]), episode.main_view[3])


def test_a_served_policy_repeats_its_training_unless_asked_otherwise(tmp_path, lab):
    data, _, _ = lab("so101", {"open": 42, "closed": 8}, fit="crop")
    folder = save(tmp_path / "policy", [data], trained_on([data]))
    assert RobotSide.served(folder) == RobotSide.of(folder)
    assert RobotSide.served(folder, Fit.letterbox) == replace(RobotSide.of(folder), fit=Fit.letterbox)
    bare = RobotSide.served(save(tmp_path / "bare", [data], None))
    assert (bare.ends, bare.pictures, bare.image_size, bare.fit) == (None, "as they are", (16, 16), Fit.stretch)
    own = RobotSide.served(save(tmp_path / "own", [data], None, fit=Fit.letterbox))
    assert own.fit is Fit.letterbox


PRELUDE = """
import time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
from worldrl.core.types import PolicyObs
from worldrl.rollout.agents.policy_folder import load_policy
from worldrl.rollout.agents.robot_side import RobotSide
camera, targets_now = lambda: np.zeros((24, 32, 3), np.uint8), lambda: np.array([3, 42], np.float32)
robot = SimpleNamespace(send=lambda target: print("sent", *target))
"""


def test_the_loop_of_the_guide_drives_the_robot_in_its_own_units(tmp_path, lab, run_python):
    data, _, _ = lab("so101", {"open": 42, "closed": 8})
    folder = save(tmp_path / "policy", [data], trained_on([data]))
    text = (Path(__file__).parents[2] / "docs" / "guide" / "recordings.md").read_text()
    loop = text.split("```python\n")[1].split("```")[0]
    assert len(loop.splitlines()) <= 10
    shorter = loop.replace("runs/robot-vla/stages/round-1-4-improve/policy", str(folder)).replace(
        "range(100)", "range(3)"
    )
    assert str(folder) in shorter
    (tmp_path / "loop.py").write_text(PRELUDE + shorter)
    ended = run_python(tmp_path / "loop.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    sent = np.array([line.split()[1:] for line in ended.stdout.splitlines()], float)
    assert sent.shape == (3 * SIZES["chunk_length"], 2)
    assert sent[:, 1].min() >= 8 - 1e-3  # closed
    assert sent[:, 1].max() <= 42 + 1e-3
    assert sent[:, 1].max() > 1  # and not in the policy's numbers, from 0 to 1


def test_two_ways_of_recording_are_no_one_robot(tmp_path, lab):
    data, other = (lab(name, {"open": top, "closed": 8})[0] for name, top in (("a", 42), ("b", 44)))
    folder = save(tmp_path / "two", [data], merged(trained_on([data]), trained_on([other])))
    with pytest.raises(SettingError, match=r"recordings differ in gripper, turn or size of images \(a, b\)"):
        RobotSide.of(folder)
    same = save(tmp_path / "one", [data], trained_on([data, data]))
    assert RobotSide.of(same).ends == ((42.0, 8.0),)


def test_a_policy_that_says_nothing_or_nonsense_is_refused(tmp_path, lab):
    data, _, _ = lab("so101", {"open": 42, "closed": 8})
    with pytest.raises(SettingError, match="keeps nothing of a recorded robot"):
        RobotSide.of(save(tmp_path / "silent", [data], None))
    known = trained_on([data])
    for change in (
        {"pictures": "upside down"},
        {"gripper": {"claw": {"open": 1.0, "closed": 0.0}}},
        {"image_size": "big"},
        {"fit": "zoom"},
    ):
        damaged = {**known, "recorded": [{**known["recorded"][0], **change}]}
        with pytest.raises(ArtefactError, match="recorded"):
            RobotSide.of(save(tmp_path / "damaged", [data], damaged))
