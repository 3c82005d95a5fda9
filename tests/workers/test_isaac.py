"""Unit under test: ``workers/isaac.py``, in a real worker process, against a double of Isaac Lab 2.3.2 (``isaac_double.py``).
None of it ran against the real Isaac Lab."""

import sys
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.evaluation.policy.protocol import suite_protocol
from worldrl.rollout.suites.env import SuiteVecEnv
from worldrl.rollout.suites.isaac import isaac_launch
from worldrl.rollout.suites.registry import find_suite
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.simulators.process import Launch
from worldrl.workers.isaac import facts
from worldrl.workers.isaac.worker import episode_seed, vendor_action, xyzw

TARGET = f"{Path(__file__).parent / 'isaac_double.py'}:Double"


def launch(suite, num_envs=2, **options):
    return Launch(suite, sys.executable, TARGET, {"suite": suite, "num_envs": num_envs, **options})


def act(x=0.0, y=0.0, z=0.0, gripper=-1.0):
    return np.array([x, y, z, 0, 0, 0, gripper], np.float32)


def test_units_signs_and_quaternions_are_liberos():
    action = vendor_action(np.array([1, 0, 0, 0, 0, 1, 1], np.float32), gripper=True)
    np.testing.assert_allclose(0.5 * action[:6], [0.05, 0, 0, 0, 0, 0.5])  # Isaac multiplies by 0.5
    assert action[6] == -1  # Isaac closes below zero
    assert vendor_action(np.zeros((3, 7), np.float32), gripper=False).shape == (3, 6)
    np.testing.assert_array_equal(xyzw(np.array([1.0, 0.0, 0.0, 0.5])), [0, 0, 0.5, 1])


def test_one_row_is_reset_while_the_other_continues_and_the_last_observation_is_kept():
    task = facts.SUITES["isaac_stack"]
    with SimulatorPool(launch("isaac_stack", cameras=["scene", "wrist"], image_size=8), slots=2, restarts=0) as pool:
        assert pool.probe() == {"distance_mm": 0.0}
        rows = pool.reset({0: Start(task.id, 5, 0), 1: Start(task.id, 6, 0)})
        first = rows[0]
        # 0.107 m below the hand, which points straight down: zero rotation vector from there, and pi about x.
        np.testing.assert_allclose(first["state"][:3], [0.4, 0.0, 0.3 - facts.TOOL_OFFSET_M], atol=1e-6)
        np.testing.assert_allclose(first["state"][3:6], [np.pi, 0, 0], atol=1e-6)
        np.testing.assert_allclose(first["command"], [0.4, 0.0, 0.193, 0, 0, 0, -1], atol=1e-6)
        np.testing.assert_allclose(first["state"][6:], [0.04, -0.04], atol=1e-6)
        assert first["image"].shape == (8, 8, 3)
        assert first["policy"].shape == (6,)
        for _ in range(6):
            rows = pool.step({0: act(z=1, gripper=1), 1: act(x=1)})
        np.testing.assert_allclose(rows[0]["state"][2] - first["state"][2], 6 * 0.05, atol=1e-5)
        assert rows[0]["success"]
        assert not rows[1]["success"]
        assert rows[0]["image"].mean() > first["image"].mean()  # the image of the very step that succeeded
        before = rows[1]["policy"]
        again = pool.reset({0: Start(task.id, 5, 0)})[0]
        np.testing.assert_array_equal(again["policy"], first["policy"])
        np.testing.assert_array_equal(pool.step({0: act(), 1: act()})[1]["policy"], before)


def test_rows_that_are_not_stepped_hold_and_starts_depend_on_their_names_alone():
    task = facts.SUITES["isaac_lift"].id
    with SimulatorPool(launch("isaac_lift"), slots=2, restarts=0) as pool:
        both = pool.reset({0: Start(task, 1, 0), 1: Start(task, 2, 0)}, render=False)
        pool.step({0: act(x=1)}, render=())
        held = pool.step({0: act(), 1: act()}, render=())[1]
        np.testing.assert_array_equal(held["policy"], both[1]["policy"])
        swapped = pool.reset({0: Start(task, 2, 0), 1: Start(task, 1, 0)}, render=False)
        np.testing.assert_array_equal(swapped[0]["policy"], both[1]["policy"])
        np.testing.assert_array_equal(swapped[1]["policy"], both[0]["policy"])
        assert len({episode_seed(task, i, s) for i in range(3) for s in range(3)}) == 9


@pytest.mark.parametrize("suite", ["isaac_reach", "isaac_lift"])
def test_a_goal_is_in_the_robots_frame(suite):
    """The double's base is turned by 90 degrees about z: (x, y) of the command is (-y, x) of the world."""
    task = facts.SUITES[suite].id
    with SimulatorPool(launch(suite, 3), slots=3, restarts=0) as pool:
        rows = pool.reset({slot: Start(task, slot, 0) for slot in range(3)}, render=False)
        import torch

        torch.manual_seed(episode_seed(task, 2, 0))
        cube = (0.1 * torch.rand(1, 3)).numpy()[0]
        x, y, z = (0.2 + 0.1 * torch.rand(1, 3)).numpy()[0]
        place = np.array([0.4, 0.0, 0.3]) if suite == "isaac_reach" else cube
        np.testing.assert_allclose(rows[2]["policy"][3:], cube, rtol=1e-6)
        way = (np.array([-y, x, z]) - place) / facts.POSITION_SCALE
        steps = int(np.ceil(np.abs(way).max()))
        for number in range(steps):
            rows = pool.step({2: act(*(way / steps), gripper=1)}, render=())
            assert bool(rows[2]["success"]) == (np.linalg.norm(way) * (1 - (number + 1) / steps) < 1)


def test_the_drawer_and_the_time_limit():
    settings = {"num_envs": 2, "workers": 1, "horizon": 480, "cameras": (), "restarts": 0}
    env = SuiteVecEnv(launch("isaac_drawer"), **settings)
    try:
        obs, _ = env.reset(seed=1)
        assert obs["policy"].shape == (2, 6)
        for _ in range(7):
            obs, reward, terminated, truncated, _info = env.step(np.stack([act(x=1), act()]))
        np.testing.assert_array_equal(terminated, [True, False])  # 0.35 m open
        np.testing.assert_array_equal(reward, [1.0, 0.0])
        env._elapsed[1] = 479
        truncated = env.step(np.stack([act(), act()]))[3]
        np.testing.assert_array_equal(truncated, [False, True])
        described = {**env.pool.suite, "packages": {"isaaclab": "2.3.2", "isaacsim": "5.1"}}
        protocol = suite_protocol(
            find_suite("isaac_drawer"),
            described,
            shadows=True,
            assets_note="",
            episodes_per_task=3,
            seed=0,
            chunk_length=1,
        )
        assert protocol.horizon == {"Isaac-Open-Drawer-Franka-IK-Rel-v0": 480}
    finally:
        env.close()


def test_bad_input():
    with pytest.raises(SettingError, match="did you mean 'isaac_lift'"):
        isaac_launch("isaac_lft", num_envs=1)
    with pytest.raises(SettingError, match="isaac_lift has none; with images there is isaac_stack"):
        isaac_launch("isaac_lift", num_envs=1, cameras=("scene",))
