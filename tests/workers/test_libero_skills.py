"""Unit under test: ``workers/libero_skills.py`` without LIBERO: a hand that obeys; a drawer and a bowl that follow a closed hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.workers.libero.expert import BOWL, CLOSED, UP, NoExpertError, PickAndPlace, grip_of
from worldrl.workers.libero.facts import POSITION_SCALE, ROTATION_SCALE
from worldrl.workers.libero.several import known_goal, make_expert
from worldrl.workers.libero.skills import HANDLE
from worldrl.workers.link.rotations import DOWN

BLACK_BOWL, REGION = "akita_black_bowl_1", "wooden_cabinet_1_middle_region"
SITE = np.array([[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
"""LIBERO's: the cabinet is turned by half a turn, so its drawers come out along +y."""
FRONT_M, LOWEST_M, HIGHEST_M = 0.0865, 0.07, 0.13
"""How far the drawer's front is before its region's middle, and between which heights the drawer is."""
RADIUS_M = 0.055
"""Of a bowl, and of open fingers."""
RIM_M = 0.05
"""Height of a bowl."""
RIM = BOWL.side_m * np.array([0.0, 1.0, 0.0]) + BOWL.height_m * UP


class Kitchen:
    """A cabinet at the origin; the hand is where it is commanded. The bowl stands where the open drawer hangs over it."""

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


def test_a_tall_carton_is_gripped_below_the_palm_and_carried_over_a_baskets_rim():
    """LIBERO's milk: half 8 cm tall; fingers reach 5 cm beyond the palm; the basket's rim is 14 cm over the table."""
    half_m, grip = 0.081, grip_of("milk_1")
    assert grip_of("orange_juice_1") == grip != grip_of("butter_1")
    assert half_m - grip.height_m < 0.05
    assert grip.carry_m - grip.height_m - half_m + 0.067 > 0.14


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


class FullDrawer(Kitchen):
    """The drawer is out, of a cabinet that stands at an angle; the bowl lies in it, and is held by its rim on any side."""

    yaw = Rotation.from_rotvec(-0.42 * UP)
    inner_m = 0.105
    """Half the drawer's width."""
    front_m = 0.076
    """From the middle of the drawer to its front, from within."""
    edge_m, edge_height_m = 0.09, 0.034
    """The cabinet's upper front edge: how far before the shut drawer's middle, and how far above it."""

    def __init__(self, across_m):
        super().__init__(["on", BLACK_BOWL, "plate_1"])
        self.drawer, self.plate = 0.15, np.array([-0.05, 0.45, 0.0])
        self.bowl = self.position(REGION) + self.yaw.apply([across_m, -0.012, -0.028])
        self.hand = np.array([-0.3, 0.1, 0.25])

    def position(self, name):
        if name == "plate_1":
            return self.plate
        return self.bowl if name == BLACK_BOWL else self.yaw.apply([0.0, self.drawer, 0.1])

    def matrix(self, name):
        return self.yaw.as_matrix() @ SITE

    def pulled(self, name):
        return self.drawer if name == REGION else None

    def step(self, action):
        assert np.abs(action).max() <= 1
        self.hand = self.hand + (motion := POSITION_SCALE * action[:3])
        self.turned = Rotation.from_rotvec(ROTATION_SCALE * action[3:6]) * self.turned
        self.held = action[6] == CLOSED and (self.held or self.rim_between_fingers())
        self.bowl = self.bowl + motion if self.held else self.bowl

    def rim_between_fingers(self):
        way, height = (self.hand - self.bowl)[:2], self.hand[2] - self.bowl[2]
        across = abs(way @ self.turned.as_matrix()[:2, 1]) / np.linalg.norm(way)  # 1 where one is within, one without
        return across > 0.9 and abs(np.linalg.norm(way) - BOWL.side_m) < 0.02 and abs(height - BOWL.height_m) < 0.02

    def reach(self):
        """How far the open fingers are from the drawer's middle, along its width and outwards (m), at most."""
        finger = RADIUS_M * self.turned.as_matrix()[:, 1]
        both = np.stack([self.hand + finger, self.hand - finger]) - self.position(REGION)
        return np.abs(both @ self.yaw.as_matrix()[:, 0]).max(), (both @ self.yaw.as_matrix()[:, 1]).max()

    def past_the_edge(self):
        """How far the bowl's rear is before the cabinet's edge (m), where its rim is at the edge's height; None elsewhere."""
        above = self.bowl[2] + RIM_M - self.position(REGION)[2] - self.edge_height_m
        return self.bowl @ self.yaw.as_matrix()[:, 1] - RADIUS_M - self.edge_m if 0 < above < RIM_M else None


@pytest.mark.parametrize("across_m", [-0.012, 0.012])
def test_what_lies_in_an_open_drawer_is_taken_out_with_fingers_between_its_walls(across_m):
    kitchen = FullDrawer(across_m)
    expert, low, past = make_expert(kitchen), [], []
    for _ in range(220):
        kitchen.step(expert.act(kitchen))
        past += [kitchen.past_the_edge()] if kitchen.held else []
        if not kitchen.held and np.linalg.norm((kitchen.hand - kitchen.bowl)[:2]) < 0.1 and kitchen.hand[2] > 0.09:
            low += [kitchen.reach()] if kitchen.hand[2] < HIGHEST_M else []
    assert low
    assert min(distance for distance in past if distance is not None) > 0
    assert max(across for across, _ in low) < kitchen.inner_m
    assert max(out for _, out in low) < kitchen.front_m
    np.testing.assert_allclose(kitchen.bowl[:2], kitchen.plate[:2], atol=0.02)
    assert kitchen.bowl[2] < 0.05


def test_a_bowl_beside_an_open_drawer_or_in_a_shut_one_is_taken_as_any_other():
    for bowl, drawer in (([0.0, 0.35, 0.07], 0.15), ([0.0, 0.0, 0.07], 0.0)):
        kitchen = FullDrawer(0.0)
        kitchen.drawer, kitchen.bowl = drawer, kitchen.yaw.apply(bowl)
        assert isinstance(make_expert(kitchen), PickAndPlace)


def test_it_says_what_it_knows():
    movable = ("akita_black_bowl_1", "plate_1")
    assert known_goal([["Turnon", "flat_stove_1"]], movable)
    assert known_goal([["on", "plate_1", "main_table_stove_front_region"]], movable)
    assert not known_goal([["open", "wooden_cabinet_1_bottom_region"]], movable)  # no room above the table
    assert not known_goal([["open", "white_cabinet_1_top_region"]], movable)
    assert known_goal([["Turnon", "yellow_stove_1"], ["on", "plate_1", "table"]], movable)
    assert known_goal([["in", "plate_1", REGION], ["Close", REGION]], movable)
    assert not known_goal([["in", "plate_1", "microwave_1_heating_region"], ["Close", "microwave_1"]], movable)
    assert not known_goal([["Close", REGION]], movable)
    with pytest.raises(NoExpertError, match=r"close.*it knows \(on A B\)"):
        make_expert(Kitchen(["close", REGION]))


def test_a_bowl_high_up_is_come_to_from_above_with_the_fingers_forward():
    """It stands higher than the hand begins; straight down, a real arm would be too short there."""
    kitchen = Kitchen(["on", BLACK_BOWL, REGION])
    kitchen.bowl, kitchen.hand = np.array([0.05, 0.26, 1.13]), np.array([-0.2, 0.0, 1.17])
    expert, arrived, held = make_expert(kitchen), [], []
    for _ in range(60):
        kitchen.step(expert.act(kitchen))
        if np.linalg.norm((kitchen.hand - kitchen.bowl)[:2]) < 0.12:
            arrived.append(kitchen.hand[2])
        held.append(kitchen.held)
    assert arrived[0] > 1.13 + RIM_M + 0.08
    assert any(held)
    lean = (kitchen.turned * Rotation.from_matrix(DOWN).inv()).as_rotvec()
    np.testing.assert_allclose(lean, [0, -0.3, 0], atol=0.03)
