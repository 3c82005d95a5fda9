"""Unit under test: ``workers/libero_skills.py`` without LIBERO: a hand that obeys; a drawer and a bowl that follow a closed hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.workers.libero_expert import BOWL, CLOSED, UP, NoExpertError
from worldrl.workers.libero_facts import POSITION_SCALE, ROTATION_SCALE
from worldrl.workers.libero_skills import HANDLE, known_goal, make_expert
from worldrl.workers.rotations import DOWN

BLACK_BOWL, REGION = "akita_black_bowl_1", "wooden_cabinet_1_middle_region"
SITE = np.array([[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
"""LIBERO's: the cabinet is turned by half a turn, so its drawers come out along +y."""
FRONT_M, LOWEST_M, HIGHEST_M = 0.0865, 0.07, 0.13
"""How far the drawer's front is before its region's middle, and between which heights the drawer is."""
RADIUS_M = 0.055
"""Of a bowl, and of open fingers."""
RIM = BOWL.side_m * np.array([0.0, 1.0, 0.0]) + BOWL.height_m * UP


class Kitchen:
    """A cabinet at the origin; the hand is where it is told to be. The bowl stands where the open drawer hangs over it."""

    fixtures, movable = ("wooden_cabinet_1",), (BLACK_BOWL,)

    def __init__(self, goal):
        self.goals, self.drawer, self.held = [goal], 0.0, False
        self.bowl = np.array([-0.1, 0.233, -0.09])
        self.hand, self.turned = np.array([-0.2, 0.2, 0.3]), Rotation.from_matrix(DOWN)

    @property
    def obs(self):
        return {"robot0_eef_pos": self.hand, "robot0_eef_quat": self.turned.as_quat()}

    def position(self, name):
        return self.bowl if name == BLACK_BOWL else np.array([0.0, self.drawer, 0.1])

    def matrix(self, name):
        return SITE

    def pulled(self, name):
        return self.drawer

    def step(self, action):
        assert np.abs(action).max() <= 1
        closed = action[6] == CLOSED
        pulls = closed and np.linalg.norm(self.hand - self.position(REGION) - SITE @ HANDLE) < 0.02
        self.held = closed and np.linalg.norm(self.hand - self.bowl - RIM) < 0.03
        motion = POSITION_SCALE * action[:3]
        self.hand = self.hand + motion
        self.turned = Rotation.from_rotvec(ROTATION_SCALE * action[3:6]) * self.turned
        self.drawer = min(0.16, self.drawer + max(0.0, motion[1])) if pulls else self.drawer
        self.bowl = self.hand - RIM if self.held else self.bowl


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


def test_hand_and_bowl_pass_the_open_drawer_in_front_of_it():
    kitchen = Kitchen(["in", BLACK_BOWL, REGION])
    expert, down, up = make_expert(kitchen), [], []
    for _ in range(250):
        kitchen.step(expert.act(kitchen))
        front = kitchen.drawer + FRONT_M
        if kitchen.held and not (up and up[-1][1] > HIGHEST_M):
            up.append((kitchen.bowl[1] - RADIUS_M - front, kitchen.bowl[2]))
        elif kitchen.drawer > 0.14 and not up:
            down.append((kitchen.hand[1] - RADIUS_M - front, kitchen.hand[2]))
    highest = int(np.argmax([height for _, height in down]))
    for way in (down[highest:], up):
        beside = [distance for distance, height in way if LOWEST_M < height < HIGHEST_M]
        assert beside
        assert min(beside) > 0
    np.testing.assert_allclose(kitchen.bowl[:2], [0.0, kitchen.drawer], atol=0.02)


def test_it_says_what_it_knows():
    movable = ("akita_black_bowl_1", "plate_1")
    assert known_goal([["Turnon", "flat_stove_1"]], movable)
    assert known_goal([["on", "plate_1", "main_table_stove_front_region"]], movable)
    assert not known_goal([["open", "wooden_cabinet_1_bottom_region"]], movable)  # no room above the table
    assert not known_goal([["open", "white_cabinet_1_top_region"]], movable)
    assert not known_goal([["turnon", "flat_stove_1"], ["on", "plate_1", "table"]], movable)
    with pytest.raises(NoExpertError, match=r"close.*wooden_cabinet's drawers top_region, middle_region"):
        make_expert(Kitchen(["close", REGION]))
