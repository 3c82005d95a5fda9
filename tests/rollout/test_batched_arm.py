"""Unit under test: ``rollout/batched_arm.py``, against the suite's own kinematics and against differences."""

import numpy as np
import torch

from worldrl.rollout.suites.batched_arm import BatchedArm, turned
from worldrl_envs.control import PANDA
from worldrl_envs.kinematics import HOME_QPOS, ArmKinematics


def commands(draw, rows):
    """Commanded poses in the workspace, some out of the arm's reach."""
    place = draw.uniform(PANDA.workspace_low, PANDA.workspace_high, (rows, 3))
    return np.c_[place, draw.uniform(-0.3, 0.3, (rows, 3)), np.ones(rows)].astype(np.float32)


def test_every_row_is_solved_as_the_suite_solves_one():
    draw = np.random.default_rng(0)
    aim, qpos = commands(draw, 24), np.array(HOME_QPOS) + draw.uniform(-0.3, 0.3, (24, 7))
    one, many = ArmKinematics(), BatchedArm()
    for _ in range(3):  # control steps; the speed limit binds in the first
        expected = np.stack([one.solve(command, start) for command, start in zip(aim, qpos, strict=True)])
        found = many.solve(torch.from_numpy(aim), torch.from_numpy(qpos)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-11)
        qpos = expected


def test_a_row_does_not_depend_on_its_neighbours():
    draw, many = np.random.default_rng(1), BatchedArm()
    aim, qpos = torch.from_numpy(commands(draw, 5)), torch.from_numpy(np.tile(HOME_QPOS, (5, 1)))
    together = many.solve(aim, qpos)
    order = torch.tensor([3, 0, 4])
    torch.testing.assert_close(many.solve(aim[order], qpos[order]), together[order], rtol=0, atol=1e-14)


def test_rotating_a_vector_is_two_quaternion_products():
    angle = torch.tensor(0.7, dtype=torch.float64)
    about_z = torch.stack(
        [torch.cos(angle / 2), torch.zeros(()).double(), torch.zeros(()).double(), torch.sin(angle / 2)]
    )
    found = turned(about_z, torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.stack([torch.cos(angle), torch.sin(angle), torch.tensor(2.0).double()]))
