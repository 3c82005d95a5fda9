"""Unit under test: ``workers/libero_skills.py`` without LIBERO: a hand that obeys, and a drawer that follows a closed hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.workers.libero_expert import CLOSED, NoExpertError
from worldrl.workers.libero_facts import POSITION_SCALE, ROTATION_SCALE
from worldrl.workers.libero_skills import HANDLE, known_goal, make_expert
from worldrl.workers.rotations import DOWN

REGION = "wooden_cabinet_1_middle_region"
SITE = np.array([[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
"""LIBERO's: the cabinet is turned by half a turn, so its drawers come out along +y."""


class Kitchen:
    """A cabinet at the origin; the hand is where it is told to be."""

    fixtures, movable = ("wooden_cabinet_1",), ("akita_black_bowl_1",)

    def __init__(self, goal):
        self.goals, self.drawer = [goal], 0.0
        self.hand, self.turned = np.array([-0.2, 0.2, 0.3]), Rotation.from_matrix(DOWN)

    @property
    def obs(self):
        return {"robot0_eef_pos": self.hand, "robot0_eef_quat": self.turned.as_quat()}

    def position(self, name):
        return np.array([0.0, self.drawer, 0.1])

    def matrix(self, name):
        return SITE

    def pulled(self, name):
        return self.drawer

    def step(self, action):
        assert np.abs(action).max() <= 1
        held = action[6] == CLOSED and np.linalg.norm(self.hand - self.position(REGION) - SITE @ HANDLE) < 0.02
        motion = POSITION_SCALE * action[:3]
        self.hand = self.hand + motion
        self.turned = Rotation.from_rotvec(ROTATION_SCALE * action[3:6]) * self.turned
        self.drawer += max(0.0, motion[1]) if held else 0.0


def test_a_drawer_is_pulled_by_a_hand_that_leans_towards_it():
    kitchen = Kitchen(["open", REGION])
    expert = make_expert(kitchen)
    for _ in range(150):
        kitchen.step(expert.act(kitchen))
        if kitchen.drawer > 0.14:
            break
    assert kitchen.drawer > 0.14
    pointing = kitchen.turned.as_matrix()[:, 2]
    assert pointing[1] < -0.9  # into the cabinet, whose drawers come out along +y


def test_it_says_what_it_knows():
    movable = ("akita_black_bowl_1", "plate_1")
    assert known_goal([["Turnon", "flat_stove_1"]], movable)
    assert known_goal([["on", "plate_1", "main_table_stove_front_region"]], movable)
    assert not known_goal([["open", "wooden_cabinet_1_bottom_region"]], movable)  # no room above the table
    assert not known_goal([["open", "white_cabinet_1_top_region"]], movable)
    assert not known_goal([["turnon", "flat_stove_1"], ["on", "plate_1", "table"]], movable)
    with pytest.raises(NoExpertError, match=r"close.*wooden_cabinet's drawers top_region, middle_region"):
        make_expert(Kitchen(["close", REGION]))
