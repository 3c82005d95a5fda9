"""Unit under test: actions beyond the robot's range in external datasets (``data.lerobot.external.bounds``)."""

import json

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset

NAMES = ["lift.pos", "gripper.pos"]
ROBOT = {"kind": "joints", "names": NAMES, "low": [-1.0, 0.0], "high": [50.0, 1.0], "max_speed": [2000.0, 100.0], "control_hz": 30.0}  # fmt: skip


@pytest.fixture
def joints(tmp_path, publish_lerobot):
    """Open two episodes of a joint and a gripper of 8 to 42; row 7 of the second goes beyond both."""
    action = np.column_stack([2.0 * np.arange(20), np.where(np.arange(20) % 10 < 5, 42.0, 8.0)]).astype(np.float32)
    beyond = action.copy()
    beyond[7] = 55.0, 43.0
    images = np.zeros((20, 16, 16, 3), np.uint8)
    episodes = [
        {"sentence": "lift", "observation.state": rows, "action": rows, "observation.images.front": images}
        for rows in (action, beyond)
    ]
    folder = publish_lerobot(tmp_path / "joints", episodes, fps=30)

    def opened(**stated):
        ends = {"open": 42, "closed": 8}
        stated = {"robot": ROBOT, "gripper": ends, "success": "every episode", **stated}
        (folder / "worldrl.json").write_text(json.dumps(stated))
        return EpisodeDataset.open(folder), action

    return opened


def test_joints_beyond_their_range_are_clipped_on_request_only(joints):
    with pytest.raises(
        SettingError, match=r"lift\.pos lies in \[-1, 50\], its targets reach \[0, 55\].*clip_actions: true"
    ):
        joints()
    with pytest.raises(SettingError, match=r"clip_actions must be true or false, got 'yes'"):
        joints(clip_actions="yes")
    data, action = joints(clip_actions=True)
    np.testing.assert_array_equal(data[1].action[7], [50.0, 1.0])
    np.testing.assert_array_equal(data[1].command[8], [50.0, 1.0])  # the robot's command is what is learned
    np.testing.assert_array_equal(data[0].action[:, 0], action[:-1, 0])
    np.testing.assert_array_equal(np.delete(data[1].action, 7, axis=0), np.delete(data[0].action, 7, axis=0))
    assert data.records[0].meta["lerobot"]["clip_actions"] is True


def test_of_libero_the_refusal_names_file_episode_field_row_value_and_setting(libero_demo, publish_lerobot, tmp_path):
    demos = [libero_demo(n, rows=24) for n in range(2)]
    demos[1]["action"][3, 2] = 1.04
    demos[1]["action"][5, 6] *= 1.02
    folder = publish_lerobot(tmp_path / "libero", demos)
    (folder / "worldrl.json").write_text('{"robot": "libero", "success": "every episode"}')
    first, second = EpisodeDataset.open(folder)._entries
    assert first.read().action.shape == (23, 7)
    with pytest.raises(ArtefactError) as error:
        second.read()
    text = str(error.value)
    for part in (
        "file-000.parquet: episode 1, field 'action': ",
        "leaves [-1, 1] at row 3",
        "dz is 1.04",
        '"clip_actions": true',
    ):
        assert part in text
    (folder / "worldrl.json").write_text('{"robot": "libero", "success": "every episode", "clip_actions": true}')
    clipped = EpisodeDataset.open(folder)[1].action
    assert clipped[3, 2] == 1
    np.testing.assert_array_equal(np.abs(clipped).max(), 1)
