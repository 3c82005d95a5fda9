"""Units under test: what of ``workers/maniskill*.py`` needs no ManiSkill: signs, seeds, suites, the expert's plan."""

from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.evaluation.policy.protocol import suite_protocol
from worldrl.rollout.suites.maniskill import maniskill_launch
from worldrl.rollout.suites.registry import find_suite
from worldrl.workers.maniskill import facts
from worldrl.workers.maniskill.expert import CLOSED, OPEN, CubeExpert, NoExpertError, quarter_turn
from worldrl.workers.maniskill.worker import ManiSkill, vendor_action


def test_rotation_and_gripper_have_the_other_sign():
    action = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, -1], np.float32)
    np.testing.assert_allclose(vendor_action(action), [0.1, 0.2, 0.3, -0.4, -0.5, -0.6, 1])


@pytest.mark.parametrize("device", facts.DEVICES)
def test_the_physics_is_the_cpus_whatever_draws(device):
    """ManiSkill's two physics give other episodes, and the GPU's hangs on how many environments there are besides."""
    asked = []
    suite = object.__new__(ManiSkill)  # without the packages; only what ``make`` reads
    suite.suite, suite.image_size, suite.device = "maniskill_cubes", 16, device
    made = SimpleNamespace(unwrapped=None)
    suite._gymnasium = SimpleNamespace(make=lambda task, **options: asked.append(options) or made)
    suite.make("PickCube-v1")
    assert asked[0]["sim_backend"] == "physx_cpu"
    assert asked[0]["num_envs"] == 1


def test_a_start_is_named_by_task_number_and_seed():
    seeds = {
        facts.episode_seed(task, number, seed) for task in facts.TASKS for number in range(20) for seed in range(3)
    }
    assert len(seeds) == len(facts.TASKS) * 60
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert set(facts.SUITES["maniskill_cubes"]) == {"PickCube-v1", "PushCube-v1", "PullCube-v1", "StackCube-v1"}


@pytest.mark.parametrize("angle", np.linspace(-7, 7, 29))
def test_a_cube_looks_alike_after_quarter_turns(angle):
    small = quarter_turn(float(angle))
    assert -np.pi / 4 <= small < np.pi / 4
    assert (angle - small) / (np.pi / 2) == pytest.approx(round((angle - small) / (np.pi / 2)), abs=1e-9)


class Table:
    """A tool that goes where it is commanded at once, and a cube that it carries."""

    def __init__(self):
        self.place, self.angle = np.array([0.0, 0.0, 0.2]), 0.0
        self.cube, self.held = np.array([0.05, -0.05, 0.02]), False

    def tool(self):
        half = self.angle / 2  # a hand that points down, turned about the vertical
        return self.place, np.array([np.cos(half), np.sin(half), 0.0, 0.0])

    def objects(self):
        return {"cube": self.cube, "goal_site": np.array([0.0, 0.1, 0.25])}

    def heading(self, name):
        return 0.3

    def take(self, action):
        self.held = self.held or (action[6] == CLOSED and np.linalg.norm(self.place - self.cube) < 0.01)
        self.place = self.place + facts.POSITION_SCALE * action[:3]
        self.angle += facts.ROTATION_SCALE * action[5]
        if self.held and action[6] == CLOSED:
            self.cube = self.place


def test_the_expert_turns_grasps_and_carries():
    table = Table()
    expert = CubeExpert("PickCube-v1", table)
    grippers = []
    for _ in range(30):
        action = expert.act(table)
        assert np.abs(action).max() <= 1
        grippers.append(action[6])
        table.take(action)
    assert abs(quarter_turn(table.angle - 0.3)) < 0.1
    np.testing.assert_allclose(table.cube, [0.0, 0.1, 0.25], atol=0.02)
    assert grippers == sorted(grippers)  # open, then closed to the end
    assert grippers[0] == OPEN
    with pytest.raises(NoExpertError, match=r"RollBall-v1; it plays PickCube-v1"):
        CubeExpert("RollBall-v1", table)


def test_the_protocol_has_each_tasks_limit():
    names = facts.SUITES["maniskill"]
    described = {
        "tasks": [{"name": name, "instruction": "", "horizon": facts.TASKS[name].horizon} for name in names],
        "stored_states": facts.STORED_STATES,
        "packages": facts.PACKAGES,
        "control_hz": 20.0,
        "device": "cpu",
    }
    given = {"shadows": True, "assets_note": "", "episodes_per_task": 5, "seed": 0, "chunk_length": 4}
    protocol = suite_protocol(find_suite("maniskill"), described, **given)
    assert protocol.horizon["StackPyramid-v1"] == 250
    assert protocol.suite_version == "maniskill3.0.1"
    drawn = suite_protocol(find_suite("maniskill"), {**described, "device": "cuda"}, **given)
    assert drawn.hash != protocol.hash  # another renderer is another measurement
    with pytest.raises(SettingError, match="unknown task 'PickCub-v1'"):
        suite_protocol(find_suite("maniskill"), described, tasks=["PickCub-v1"], **given)
    with pytest.raises(SettingError, match="stores 1048576 initial states"):
        suite_protocol(find_suite("maniskill"), described, first_index=facts.STORED_STATES, **given)


def test_bad_input():
    with pytest.raises(SettingError, match="did you mean 'maniskill'"):
        maniskill_launch("maniskil")
    with pytest.raises(SettingError, match="unknown camera 'wrist'"):
        maniskill_launch("maniskill", cameras=("wrist",))
