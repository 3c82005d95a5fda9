from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.policies.samples import action_chunks, make_samples


def test_chunks_hold_past_the_end_with_the_last_gripper_command():
    action = np.arange(21, dtype=np.float32).reshape(3, 7)

    chunks = action_chunks(action, 3, TOOL_ACTIONS)

    hold = [0, 0, 0, 0, 0, 0, 20]
    np.testing.assert_array_equal(chunks[0], action)
    np.testing.assert_array_equal(chunks[1], [action[1], action[2], hold])
    np.testing.assert_array_equal(chunks[2], [action[2], hold, hold])


def test_samples_pair_frame_t_with_action_t(make_episode):
    episodes = [make_episode(5, 0), replace(make_episode(4, 1), task="Other", instruction="do it")]

    samples = make_samples(episodes, 3)

    assert len(samples) == 9
    np.testing.assert_array_equal(samples.image[5 + 2], episodes[1].frames[2, 0])
    np.testing.assert_array_equal(samples.command[5 + 2], episodes[1].command[2])
    np.testing.assert_array_equal(samples.chunk[5 + 2, 0], episodes[1].action[2])
    np.testing.assert_array_equal(samples.chunk[3, 1], episodes[0].action[4])
    assert (samples.task[5], samples.instruction[5]) == ("Other", "do it")


def test_main_camera_is_found_by_name(make_episode):
    episode = make_episode()
    both = replace(
        episode, frames=np.concatenate([255 - episode.frames, episode.frames], 1), cameras=("wrist", "scene")
    )

    assert torch.equal(make_samples([both], 3).image, make_samples([episode], 3).image)
    with pytest.raises(ArtefactError, match="scene"):
        make_samples([replace(episode, cameras=("wrist",))], 3)


def test_no_action_is_an_error():
    with pytest.raises(SettingError, match="at least one action"):
        make_samples([], 3)
