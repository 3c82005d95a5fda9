"""Whether the hand closes where the object was: which closing counts, and what it is compared with."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS, joint_targets
from worldrl.core.errors import SettingError
from worldrl.rollout.trust.shown_grasp import check_robot, closings, commands_from, counted_steps, grasp_error


@dataclass
class Reader:
    """Its error is the commanded x itself; keeps what it was asked."""

    actions: object = TOOL_ACTIONS
    closes: frozenset = frozenset()
    asked: list = field(default_factory=list)

    def normalised_error(self, frame, instruction, command):
        self.asked.append((frame, list(instruction), command))
        return command[:, 0]


ALL = np.ones(4, bool)


def commands(grippers):
    """Commands whose x counts the control steps."""
    command = torch.zeros(len(grippers), len(grippers[0]), 7)
    command[..., 0] = torch.arange(len(grippers[0]))
    command[..., 6] = torch.tensor(grippers)
    return command


def test_the_last_closing_in_time_is_compared_with_the_first_frame():
    o, c = -1.0, 1.0
    command = commands([[o, c, o, o, c, c], [o, c, o, o, c, c], [o, o, o, o, o, o], [c, c, c, c, c, c]])
    frame = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 8, 8, 3)
    reader = Reader()
    step, normalised_error = closings(reader, frame, ["a", "b", "c", "d"], command, np.array([5, 3, 5, 5]), ALL)
    assert step.tolist() == [4, 1, -1, -1]  # a hand that was closed from the beginning took hold before
    assert normalised_error.tolist() == [4, 1, 0, 0]
    ((shown, told, at),) = reader.asked
    assert shown[:, 0, 0, 0].tolist() == [0, 1]
    assert told == ["a", "b"]
    assert torch.equal(at, command[[0, 1], [4, 1]])
    assert closings(reader, frame[2:], ["c", "d"], command[2:], np.array([5, 5]), ALL[2:])[1].tolist() == [0, 0]
    assert len(reader.asked) == 1


def test_a_claimed_pick_from_an_open_hand_that_never_closes_is_false_for_certain():
    """Of two like it one claims nothing; where the hand was closed before, or the instruction needs no closing, nothing is known."""
    o, c = -1.0, 1.0
    command = commands([[o, o, o], [o, o, o], [c, c, c], [o, o, o]])
    frame, reader = torch.zeros(4, 8, 8, 3, dtype=torch.uint8), Reader(closes=frozenset({"pick it"}))
    claimed, said = np.array([True, False, True, True]), ["pick it"] * 3 + ["push it"]
    step, normalised_error = closings(reader, frame, said, command, np.array([2] * 4), claimed)
    assert step.tolist() == [-1] * 4
    assert normalised_error.tolist() == [np.inf, 0, 0, 0]


def test_imagined_rollouts_are_measured_by_their_actions_up_to_the_imagined_success(robot, make_record):
    action = torch.zeros(2, 6, 7)
    action[..., 0], action[..., 6] = 0.5, -1.0
    action[:, 2, 6] = 1.0
    action[:, 4:, 6] = 1.0
    records = [make_record(grey) for grey in (20, 200)]
    reader = Reader()
    found = grasp_error(reader, robot, records, action, np.array([4, -1]))
    x = records[0].command[0]
    # The third action closes; without an imagined success all count, and the fifth closes again.
    assert found.tolist() == pytest.approx([x + 3 * 0.5 * robot.position_scale, x + 5 * 0.5 * robot.position_scale])
    assert reader.asked[0][0][:, 0, 0, 0].tolist() == [20, 200]
    idle = torch.zeros(2, 6, 7)
    idle[..., 6] = -1.0
    picks = Reader(closes=frozenset(record.instruction for record in records))
    assert grasp_error(picks, robot, records, idle, np.array([4, -1])).tolist() == [np.inf, 0]
    first = torch.from_numpy(np.stack([record.command for record in records]))
    assert commands_from(robot, first, action).shape == (2, 7, 7)
    assert torch.equal(commands_from(robot, first, action)[:, 0], first)


def test_a_closing_counts_until_the_imagined_success():
    """Of three rollouts the second is imagined to succeed in its fourth step; the others count to ends of their own."""
    assert counted_steps(np.array([-1, 4, -1]), np.array([8, 8, 6])).tolist() == [8, 4, 6]
    assert counted_steps(np.array([-1, 4, 0]), 8).tolist() == [8, 4, 0]


def test_another_robots_is_refused():
    check_robot(Reader(), TOOL_ACTIONS)
    with pytest.raises(SettingError, match="grasp: it learned from a robot whose actions are dx"):
        check_robot(Reader(), joint_targets(("a", "gripper"), (0.0, 0.0), (1.0, 1.0)))
