"""Corrective noise: the displaced command and the corrected chunk meet the recorded path."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.methods.imitation.corrective_noise import CorrectiveNoise, command_unit, steps_before_change
from worldrl.policies.samples import Samples, make_samples

LENGTH = 4
UNIT = torch.tensor([0.02, 0.02, 0.02, 0.1, 0.1, 0.1, 0.0])  # metres and radians that an action of 1 moves


def recorded(actions: np.ndarray, unit: np.ndarray) -> Samples:
    """Samples of an episode whose command moves by ``unit`` times the action, and takes the gripper as it is."""
    path = np.concatenate([np.zeros((1, 7)), np.cumsum(unit * actions, axis=0)]).astype(np.float32)
    path[1:, 6], path[0, 6] = actions[:, 6], -1
    steps = len(actions)
    episode = Episode(
        frames=np.zeros((steps + 1, 1, 8, 8, 3), np.uint8),
        state=np.zeros((steps + 1, 8), np.float32),
        command=path,
        action=actions.astype(np.float32),
        reward=np.zeros(steps, np.float32),
        contact=np.zeros(steps + 1, bool),
        terminated=True,
        truncated=False,
        meta={},
        instruction="move",
        task="Move",
    )
    return make_samples([episode], LENGTH)


@pytest.fixture
def actions() -> np.ndarray:
    drawn = np.random.default_rng(0).uniform(-1, 1, (12, 7))
    drawn[:, 6] = np.where(np.arange(12) < 6, -1, 1)  # closes with the seventh action
    return drawn


def test_the_unit_of_each_number_is_read_from_the_data(actions):
    unit = command_unit(recorded(actions, UNIT.numpy()), TOOL_ACTIONS)
    torch.testing.assert_close(unit, UNIT)  # 0 for the gripper, which is a target


def test_numbers_that_the_actions_do_not_explain_have_no_unit(actions):
    samples = recorded(actions, UNIT.numpy())
    other = samples.command.clone()
    other[:, 1] = torch.from_numpy(np.random.default_rng(1).normal(size=len(samples)).astype(np.float32))
    other[:, 2] = -other[:, 2]  # moves against its actions
    unit = command_unit(replace(samples, command=other), TOOL_ACTIONS)
    assert unit[1] == 0
    assert unit[2] == 0
    assert unit[0] > 0


def test_torn_samples_are_refused(actions):
    samples = recorded(actions, UNIT.numpy())
    with pytest.raises(SettingError, match="make_samples"):
        command_unit(samples.select(torch.arange(3)), TOOL_ACTIONS)


def test_a_chunk_is_counted_up_to_the_gripper_s_change(actions):
    steps = steps_before_change(recorded(actions, UNIT.numpy()), TOOL_ACTIONS)
    assert steps.tolist() == [4, 4, 4, 3, 2, 1, 0, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("row", [0, 3, 5, 6, 9])
def test_from_the_displaced_command_the_chunk_meets_the_recorded_path_before_the_gripper_changes(actions, row):
    samples = recorded(actions, UNIT.numpy())
    deviation = torch.tensor([0.05, 0.1, 0.04, 0.2, 0.2, 0.2, 1.0])
    noise = torch.randn(len(samples), 7, generator=torch.Generator().manual_seed(0))

    displaced, chunk = CorrectiveNoise(TOOL_ACTIONS, UNIT, deviation)(samples, noise)

    steps = steps_before_change(samples, TOOL_ACTIONS)[row]
    begin = samples.command[row] - displaced[row] * deviation
    arrives = (begin + (UNIT * chunk[row, :steps]).sum(dim=0))[:6]
    planned = (samples.command[row] + (UNIT * samples.chunk[row, :steps]).sum(dim=0))[:6]
    torch.testing.assert_close(arrives, planned)
    torch.testing.assert_close(displaced[row, :6], noise[row, :6] * steps / LENGTH)
    assert torch.equal(chunk[row, steps:], samples.chunk[row, steps:])
    assert torch.equal(chunk[row, :, 6], samples.chunk[row, :, 6])
    assert displaced[row, 6] == 0


def test_a_target_keeps_its_chunk_and_its_whole_noise():
    robot = joint_targets(("a", "b", "gripper"), (-1.0,) * 3, (1.0,) * 3)
    robot = replace(robot, grippers=(2,), gripper_open=1.0, gripper_closed=0.0)
    samples = Samples(torch.zeros(2, 8, 8, 3), torch.zeros(2, 3), torch.rand(2, LENGTH, 3), ("x",) * 2, ("t",) * 2)
    noise = torch.randn(2, 3)

    displaced, chunk = CorrectiveNoise(robot, torch.zeros(3), torch.ones(3))(samples, noise)

    assert torch.equal(chunk, samples.chunk)
    assert torch.equal(displaced[:, :2], noise[:, :2])
    assert (displaced[:, 2] == 0).all()


def test_a_number_without_a_unit_is_not_displaced(actions):
    samples = recorded(actions, UNIT.numpy())
    unit = UNIT.clone()
    unit[1] = 0
    displaced, chunk = CorrectiveNoise(TOOL_ACTIONS, unit, torch.ones(7))(samples, torch.ones(len(samples), 7))
    assert (displaced[:, 1] == 0).all()
    assert torch.equal(chunk[..., 1], samples.chunk[..., 1])
