"""A goal that LIBERO's controller keeps, without LIBERO: a hand that makes a share of each motion that it is sent."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from worldrl.core.embodiment import next_command
from worldrl.data.lerobot.external.libero_robot import held_embodiment
from worldrl.rollout.suites.names import LIBERO_HELD, LIBERO_PRO
from worldrl.workers.libero import facts
from worldrl.workers.libero.held import HeldGoal
from worldrl.workers.libero.observation import POSITION, QUATERNION
from worldrl.workers.link.rotations import DOWN


class Hand:
    """Follows an action by ``facts.RESPONSE`` of it."""

    def __init__(self):
        self.position, self.turned = np.array([0.1, -0.2, 1.1]), Rotation.from_matrix(DOWN)

    @property
    def obs(self):
        return {POSITION: self.position, QUATERNION: self.turned.as_quat()}

    def follow(self, action):
        self.position = self.position + facts.RESPONSE * facts.POSITION_SCALE * action[:3]
        turn = Rotation.from_rotvec(facts.RESPONSE * facts.ROTATION_SCALE * action[3:6])
        self.turned = turn * self.turned


@pytest.fixture
def actions():
    return np.random.default_rng(0).uniform(-1, 1, (40, 7)).astype(np.float32) * [1, 1, 1, 0.5, 0.5, 0.5, 1]


def test_the_command_follows_from_the_actions_as_in_imagination(actions):
    hand = Hand()
    goal, gripper = HeldGoal(hand.obs), -1.0
    command, robot = torch.from_numpy(goal.command(gripper)), held_embodiment()
    assert robot.measured_pose == 0
    for action in actions:
        goal.move(action)
        hand.follow(goal.left(hand.obs, action[6]))
        command = next_command(robot, command, torch.from_numpy(action.astype(np.float32)))
        np.testing.assert_allclose(goal.command(action[6]), command.numpy(), atol=2e-5)


def test_the_hand_reaches_the_goal_once_it_rests(actions):
    hand = Hand()
    goal = HeldGoal(hand.obs)
    for action in [*actions, *np.zeros((40, 7))]:
        goal.move(action)
        hand.follow(goal.left(hand.obs, 1.0))
    np.testing.assert_allclose(hand.position, goal.command(1.0)[:3], atol=1e-5)
    turned = Rotation.from_rotvec(goal.command(1.0)[3:6]) * Rotation.from_matrix(DOWN)
    assert (turned.inv() * hand.turned).magnitude() < 1e-4


def test_an_experts_action_sends_the_hand_where_liberos_own_would(actions):
    """As far as the goal can move in a step; where it cannot, it moves as far as it can."""
    hand = Hand()
    goal = HeldGoal(hand.obs)
    small = 0.2 * actions[0]
    goal.move(goal.towards(small.astype(np.float32), hand.obs))
    np.testing.assert_allclose(goal.left(hand.obs, small[6]), small, atol=1e-6)
    far = HeldGoal(hand.obs).towards(np.array([1, 0, 0, 0, 0, 0, -1], np.float32), hand.obs)
    np.testing.assert_allclose(far, [1, 0, 0, 0, 0, 0, -1], atol=1e-6)


def test_every_suite_has_a_held_variant():
    assert {*facts.SUITES, *facts.PRO_SUITES} == {
        name.removesuffix("@held") for name in (*LIBERO_HELD, *LIBERO_PRO) if name.endswith("@held")
    }
    assert {*LIBERO_HELD, *LIBERO_PRO} <= set(facts.suite_names())
