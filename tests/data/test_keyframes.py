"""Keyframes are the frames that first show a change."""

import numpy as np

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.data.windows.keyframes import Keyframe, contact_onsets, gripper_changes, keyframes


def test_close_and_contact(make_episode):
    episode = make_episode(0, 20, close_at=7, contact_at=9)
    assert keyframes(episode) == [Keyframe(7, "gripper"), Keyframe(9, "contact")]
    assert episode.action[6, 6] == 1  # the action that led to frame 7
    assert episode.action[5, 6] == -1


def test_both_at_once_and_at_the_ends(make_episode):
    assert keyframes(make_episode(0, 5, close_at=5, contact_at=5)) == [Keyframe(5, "contact"), Keyframe(5, "gripper")]
    assert keyframes(make_episode(0, 5, close_at=1)) == [Keyframe(1, "gripper")]
    assert keyframes(make_episode(0, 5, contact_at=0)) == []
    assert keyframes(make_episode(0, 5)) == []


def test_opening_is_a_change_and_release_is_no_onset():
    command = np.zeros((6, 7), np.float32)
    command[:, 6] = [-1, 1, 1, -1, -1, 0.5]
    assert gripper_changes(command, TOOL_ACTIONS).tolist() == [1, 3, 5]
    assert contact_onsets(np.array([True, False, True, True, False, True])).tolist() == [2, 5]


def test_either_gripper_of_two_arms_counts():
    actions = joint_targets(("left_joint1", "left_gripper", "right_joint1", "right_gripper"), (-1.0,) * 4, (1.0,) * 4)
    command = np.ones((6, 4), np.float32)
    command[:, 1] = [1, 0, 0, 0, 0, 0.6]  # 0 is closed
    command[:, 3] = [1, 1, 0, 0, 1, 1]
    assert gripper_changes(command, actions).tolist() == [1, 2, 4, 5]
