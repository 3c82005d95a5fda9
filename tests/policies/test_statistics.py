from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.policies.statistics import LEAST_DEVIATION, PolicyStatistics, action_range


def test_statistics_are_quantiles_and_moments(make_episode):
    episodes = [make_episode(50, seed) for seed in range(4)]
    statistics = PolicyStatistics.from_episodes(episodes)
    action = np.concatenate([e.action for e in episodes])
    command = np.concatenate([e.command for e in episodes])

    reach = np.abs(np.quantile(action, [0.01, 0.99], axis=0)).max(axis=0)
    np.testing.assert_allclose(statistics.action_low[:6], -reach[:6], rtol=1e-6)
    np.testing.assert_allclose(statistics.action_high[:6], reach[:6], rtol=1e-6)
    np.testing.assert_allclose(statistics.command_mean, command.mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(statistics.command_std, command.std(axis=0), rtol=1e-5)


def test_rarely_closing_gripper_keeps_its_whole_range(make_episode):
    episode = make_episode(400)
    episode.action[:, 6] = -1
    episode.action[-1, 6] = 1

    statistics = PolicyStatistics.from_episodes([episode])

    assert (statistics.action_low[6], statistics.action_high[6]) == (-1, 1)


def test_action_range_in_closed_form():
    action = np.zeros((401, 5), np.float32)
    action[:, 0] = np.arange(401) / 400  # runs over 0..1
    action[:, 1] = 0.25  # never moves
    action[200, 2] = 1  # moves once
    action[:, 3] = np.arange(401) / 400 - 0.25  # a change, and faster upwards
    action[200, 4] = 5e-4  # a change that is none
    low, high = action_range(action, [True, True, True, False, False])
    np.testing.assert_allclose(low, [0.01, 0.25, 0, -0.74, 0], rtol=1e-6)
    np.testing.assert_allclose(high, [0.99, 0.25, 1, 0.74, 5e-4], rtol=1e-6)


def test_unmoving_command_has_a_bounded_scale(make_episode):
    episode = make_episode()
    episode.command[:, 3:6] = 0

    assert (PolicyStatistics.from_episodes([episode]).command_std[3:6] == LEAST_DEVIATION).all()


def test_no_action_and_wrong_shapes_are_errors(statistics):
    with pytest.raises(SettingError, match="at least one action"):
        PolicyStatistics.from_episodes([])
    with pytest.raises(SettingError, match="action_low"):
        replace(statistics, action_low=torch.zeros(6))
    with pytest.raises(SettingError, match="must not exceed"):
        replace(statistics, action_low=torch.full((7,), 2.0))
