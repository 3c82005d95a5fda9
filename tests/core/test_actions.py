"""What an action's numbers are: the null action, grippers, scales, and the two robots of the embedded suite."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, joint_targets
from worldrl.core.embodiment import JointEmbodiment, integrate_commands, next_command
from worldrl.core.errors import ArtefactError, SettingError
from worldrl_envs.bimanual import control

PAIR = JointEmbodiment.from_json(asdict(control.SIXAXIS_PAIR))


@pytest.mark.parametrize("actions", [TOOL_ACTIONS, PAIR.actions])
def test_json_round_trip(actions):
    assert ActionSpec.from_json(json.loads(json.dumps(actions.to_json()))) == actions


def test_the_fourteen_come_from_the_suites_own_names():
    assert PAIR.actions.names == control.NAMES
    assert PAIR.actions.grippers == control.GRIPPERS
    assert [range(14)[arm] for arm in PAIR.actions.arms] == [range(7), range(7, 14)]
    assert PAIR.actions.absolute


def test_holding_keeps_targets_and_ends_changes():
    told = np.arange(7, dtype=np.float32)
    assert TOOL_ACTIONS.hold(told).tolist() == [0, 0, 0, 0, 0, 0, 6]
    joints = np.random.default_rng(0).uniform(0, 1, (3, 5, 14)).astype(np.float32)
    np.testing.assert_array_equal(PAIR.actions.hold(joints), joints)
    assert PAIR.actions.hold(joints).dtype == np.float32


def test_the_null_action_of_joints_is_not_zero_and_leaves_the_command_alone():
    home = control.home_command()
    after = next_command(PAIR, torch.from_numpy(home), torch.from_numpy(PAIR.actions.hold(home)))
    np.testing.assert_array_equal(after.numpy(), home)
    moved = next_command(PAIR, torch.from_numpy(home), torch.zeros(14))
    assert (moved.numpy() != home).any()


def test_grippers_close_towards_their_own_side():
    assert TOOL_ACTIONS.closed(np.array([0, 0, 0, 0, 0, 0, 0.0], np.float32)).tolist() == [True]
    assert TOOL_ACTIONS.closed(np.array([0, 0, 0, 0, 0, 0, -0.1], np.float32)).tolist() == [False]
    command = control.home_command()
    assert PAIR.actions.closed(command).tolist() == [False, False]
    command[13] = 0.2
    assert PAIR.actions.closed(command).tolist() == [False, True]


def test_openings_are_finger_distances_or_measured_grippers():
    state = np.array([0, 0, 0, 0, 0, 0, 0.03, -0.02], np.float32)
    np.testing.assert_allclose(TOOL_ACTIONS.opening(state), [0.05])
    assert PAIR.actions.opening(np.arange(14, dtype=np.float32)).tolist() == [6, 13]


def test_scaling_fills_the_range_and_inverts():
    low, high = (torch.from_numpy(bound) for bound in PAIR.actions.bounds)
    torch.testing.assert_close(
        PAIR.actions.scaled(torch.stack([low, high])), torch.tensor([[-1.0], [1.0]]).expand(2, 14)
    )
    action = low + torch.rand(20, 14) * (high - low)
    torch.testing.assert_close(PAIR.actions.unscaled(PAIR.actions.scaled(action)), action)
    assert (PAIR.actions.unscaled(torch.full((14,), 3.0)) == high).all()
    seven = torch.rand(5, 7)
    assert TOOL_ACTIONS.scaled(seven) is seven  # bit for bit


def test_the_torch_twin_follows_the_two_armed_simulators_arithmetic():
    generator = np.random.default_rng(0)
    low, high = PAIR.actions.bounds
    actions = generator.uniform(1.1 * low - 0.1, 1.1 * high + 0.1, (60, 14)).astype(np.float32)
    command = control.home_command()
    ours = integrate_commands(PAIR, torch.from_numpy(command)[None], torch.from_numpy(actions)[None])[0]
    for step, action in enumerate(actions):
        command = control.next_command(command, action)
        np.testing.assert_array_equal(ours[step].numpy(), command)


def test_what_is_not_described_is_refused(push_episode):
    with pytest.raises(ArtefactError, match="actions have 7 numbers, and 14 are described"):
        replace(push_episode(), actions=PAIR.actions)
    with pytest.raises(SettingError, match=r"actions\.low"):
        joint_targets(("a", "b"), (0.0,), (1.0, 1.0))
    with pytest.raises(SettingError, match="must lie below"):
        joint_targets(("a",), (1.0,), (1.0,))


def test_what_lies_outside_the_range_takes_its_nearest_end_and_what_is_no_number_stays():
    action = np.array([[3.0, -0.5, -7.0, np.nan, np.inf, 1.0, -1.0]], np.float32)
    expected = np.array([[1.0, -0.5, -1.0, np.nan, np.inf, 1.0, -1.0]], np.float32)
    np.testing.assert_array_equal(TOOL_ACTIONS.within(action), expected)
    assert TOOL_ACTIONS.within(action).dtype == np.float32


def test_the_last_closing_is_found_in_either_convention():
    tool = np.zeros((6, 7), np.float32)
    tool[:, 6] = [-1, 1, -1, 0.2, 1, 1]
    assert TOOL_ACTIONS.last_closing(tool) == 3
    assert TOOL_ACTIONS.last_closing(tool[:2]) == 1
    assert TOOL_ACTIONS.last_closing(tool[4:]) == -1  # closed from the beginning
    assert TOOL_ACTIONS.last_closing(tool[:1]) == -1
    left, right = PAIR.actions.grippers
    pair = np.zeros((5, 14), np.float32)
    pair[:, left], pair[:, right] = [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]
    assert PAIR.actions.last_closing(pair) == 3  # the later of two hands
    assert PAIR.actions.last_closing(pair[:3]) == 1
