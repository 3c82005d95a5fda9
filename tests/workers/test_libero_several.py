"""Unit under test: ``workers/libero/several.py`` without LIBERO: a hand that obeys, and objects that follow a closed hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldrl.workers.libero.expert import CLOSED, UP, grip_of, middle
from worldrl.workers.libero.facts import POSITION_SCALE, ROTATION_SCALE
from worldrl.workers.libero.several import Several, make_expert
from worldrl.workers.link.rotations import DOWN

STOVE, DRAWER = "flat_stove_1", "white_cabinet_1_bottom_region"
SITE = np.array([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
"""A region of a drawer that comes out along −y."""
START = np.array([-0.2, 0.0, 0.3])


class Counter:
    """Objects on a table, a stove whose knob turns when pushed, and an open drawer that a hand can push in."""

    fixtures = (STOVE, "white_cabinet_1")

    def __init__(self, goals, places):
        self.goals, self.places = goals, {name: np.array(place) for name, place in places.items()}
        self.movable = list(self.places)
        self.hand, self.turned, self.held = START, Rotation.from_matrix(DOWN), ""
        self.on, self.drawer, self.slips, self.order = False, 0.15, 0, []

    @property
    def obs(self):
        return {"robot0_eef_pos": self.hand, "robot0_eef_quat": self.turned.as_quat()}

    def position(self, name):
        fixed = {STOVE: [-0.2, 0.4, 0.0], f"{STOVE}_cook_region": [-0.05, 0.4, 0.02], "plate_1": [0.1, -0.3, 0.0]}
        if name == DRAWER:
            return np.array([0.2, 0.3 - self.drawer, 0.05])
        return self.places[name] if name in self.places else np.array(fixed.get(name, [0.2, 0.3, 0.0]))

    def matrix(self, name):
        return SITE if name == DRAWER else np.eye(3)

    def pulled(self, name):
        return self.drawer if name == DRAWER else None

    def holds(self, goal):
        verb, name, *target = goal
        if verb == "turnon":
            return self.on
        if verb == "close":
            return self.drawer <= 0
        way = self.position(name) - self.position(target[0])
        return name != self.held and np.abs(way[:2]).max() < 0.075 and abs(way[2]) < 0.1

    def step(self, action):
        assert np.abs(action).max() <= 1
        closed, before = action[6] == CLOSED, self.hand
        self.hand = self.hand + POSITION_SCALE * action[:3]
        self.turned = Rotation.from_rotvec(ROTATION_SCALE * action[3:6]) * self.turned
        knob = self.position(STOVE) + np.array([0.034, 0.0, 0.038])
        self.on |= bool(closed and np.linalg.norm(self.hand - knob) < 0.02)
        front = self.position(DRAWER) + np.array([0.0, -0.113, -0.006])
        pushed = closed and np.abs(self.hand - front)[[0, 2]].max() < 0.05 and self.hand[1] > front[1]
        self.drawer -= float(self.hand[1] - front[1]) if pushed else 0.0
        self.held = self.held if closed else ""
        if closed and not self.held:
            self.held = next((name for name in self.movable if self.grasped(name)), "")
            self.order += [self.held] if self.held else []
            if self.held and self.slips:
                self.slips, self.held = self.slips - 1, "nothing"
        if self.held in self.places:
            self.places[self.held] = self.places[self.held] + self.hand - before

    def grasped(self, name):
        grip = grip_of(name)
        way = self.hand - middle(self, name) - grip.height_m * UP
        return abs(np.linalg.norm(way[:2]) - grip.side_m) < 0.02 and abs(way[2]) < 0.02


def play(counter, steps=400):
    """How many steps all goals take."""
    expert = make_expert(counter)
    assert isinstance(expert, Several)
    for number in range(steps):
        counter.step(expert.act(counter))
        if all(counter.holds(goal) for goal in counter.goals):
            return number
    return steps


def test_two_objects_are_put_one_after_the_other():
    goals = [["in", "butter_1", "plate_1"], ["in", "milk_1", "plate_1"]]
    counter = Counter(goals, {"butter_1": [0.0, 0.0, 0.02], "milk_1": [0.1, 0.1, 0.08]})
    assert play(counter) < 300
    assert counter.order == ["butter_1", "milk_1"]


def test_what_slipped_is_taken_again_and_what_holds_already_is_left():
    goals = [["in", "butter_1", "plate_1"], ["in", "milk_1", "plate_1"]]
    counter = Counter(goals, {"butter_1": [0.1, -0.3, 0.02], "milk_1": [0.1, 0.1, 0.08]})
    counter.slips = 1
    assert play(counter) < 400
    assert counter.order == ["milk_1", "milk_1"]


def test_a_stove_comes_first_and_two_pots_stand_beside_each_other():
    region = f"{STOVE}_cook_region"
    goals = [["on", "moka_pot_1", region], ["on", "moka_pot_2", region], ["turnon", STOVE]]
    counter = Counter(goals, {"moka_pot_1": [0.1, 0.0, 0.07], "moka_pot_2": [0.1, -0.2, 0.07]})
    expert, lit = make_expert(counter), None
    for _ in range(500):
        counter.step(expert.act(counter))
        lit = list(counter.order) if counter.on and lit is None else lit
    assert lit == [], "nothing was carried before the stove was on"
    assert all(counter.holds(goal) for goal in goals)
    apart = np.linalg.norm((counter.places["moka_pot_1"] - counter.places["moka_pot_2"])[:2])
    assert counter.order == ["moka_pot_1", "moka_pot_2"], "where all hold, the hand stays"
    assert apart == pytest.approx(0.11, abs=0.02), "a pot is 7 cm wide, and a finger stands between the two"


def test_a_drawer_is_shut_last_by_a_hand_that_leans_away_from_the_cabinet():
    bowl = "akita_black_bowl_1"
    goals = [["close", DRAWER], ["in", bowl, DRAWER]]
    counter = Counter(goals, {bowl: [0.0, -0.1, 0.0]})
    expert, gripped = make_expert(counter), None
    for _ in range(400):
        counter.step(expert.act(counter))
        gripped = counter.hand - counter.places[bowl] if counter.held == bowl else gripped
        if counter.drawer <= 0:
            break
    assert counter.drawer <= 0
    assert np.abs(gripped[:2]) == pytest.approx([0.048, 0.0], abs=0.02), "along the drawer's width, clear of its front"
    assert counter.turned.as_matrix()[:, 2] == pytest.approx([0.0, np.sin(0.8), -np.cos(0.8)], abs=0.1)
    assert abs(counter.turned.as_matrix()[0, 1]) > 0.95, "the hand's wide side is along the drawer's"


def test_a_mug_is_gripped_at_its_rim_whichever_way_its_handle_points():
    goals = [["on", "porcelain_mug_1", "plate_1"], ["on", "white_yellow_mug_1", "plate_1"]]
    counter = Counter(goals, {"porcelain_mug_1": [0.0, 0.0, 0.0], "white_yellow_mug_1": [0.2, 0.0, 0.0]})
    assert middle(counter, "porcelain_mug_1") == pytest.approx([0.0165, 0, 0])
    assert middle(counter, "white_yellow_mug_1") == pytest.approx([0.182, 0, 0])
    assert grip_of("white_yellow_mug_1") != grip_of("porcelain_mug_1") == grip_of("red_coffee_mug_1")
