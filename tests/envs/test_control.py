import numpy as np
import pytest

from worldrl_envs.control import PANDA, check_action, compose, home_command, next_command, rotvec_to_quat
from worldrl_envs.errors import ActionError

BAD = {
    "nan": np.array([0, np.nan, 0, 0, 0, 0, 0], np.float32),
    "inf": np.array([0, 0, np.inf, 0, 0, 0, 0], np.float32),
    "huge": np.array([1e30, 0, 0, 0, 0, 0, 0], np.float32),
    "just outside": np.array([0, 0, 0, 0, 0, 1.001, 0], np.float32),
    "short": np.zeros(6, np.float32),
    "batched": np.zeros((1, 7), np.float32),
    "int": np.zeros(7, np.int64),
    "bool": np.zeros(7, bool),
    "object": np.array([None] * 7, object),
    "text": "up",
    "none": None,
    "ragged": [[0.0], [0.0, 1.0]],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_actions_are_refused(name):
    with pytest.raises(ActionError, match="action"):
        check_action(BAD[name])


def test_the_error_names_index_and_value():
    with pytest.raises(ActionError, match=r"action\[1\] \(dy\): must be finite, got nan"):
        check_action(BAD["nan"])


def test_rounding_errors_are_clipped():
    assert check_action(np.full(7, 1 + 5e-7)).max() == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_command_stays_in_its_limits(seed):
    generator = np.random.default_rng(seed)
    command, bias = home_command(), generator.uniform(-0.5, 0.5, 7)
    for _ in range(100):
        command = next_command(command, np.clip(bias + generator.uniform(-1, 1, 7), -1, 1))
        assert command.dtype == np.float32
        assert np.all(command[:3] >= np.float32(PANDA.workspace_low))
        assert np.all(command[:3] <= np.float32(PANDA.workspace_high))
        assert np.linalg.norm(command[3:6]) <= PANDA.max_rotation + 1e-6


def test_position_adds_and_gripper_copies():
    action = np.array([1, -0.5, 0.25, 0, 0, 0, 0.3], np.float32)
    moved = next_command(home_command(), action)
    np.testing.assert_allclose(moved[:3] - home_command()[:3], [0.02, -0.01, 0.005], atol=1e-7)
    assert moved[6] == np.float32(0.3)


def test_null_action_keeps_the_pose():
    null = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    command = next_command(home_command(), np.array([0.3, 0.1, 0, 0.9, -0.4, 0.7, -1]))
    np.testing.assert_allclose(next_command(command, null), command, atol=1e-7)


def test_rotation_composes_in_the_world_frame():
    def matrix(rotvec):
        w, x, y, z = rotvec_to_quat(np.asarray(rotvec, np.float64))
        skew = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        return np.eye(3) + 2 * w * skew + 2 * skew @ skew

    left, right = np.array([0.08, -0.03, 0.1]), np.array([-0.2, 0.25, 0.1])
    np.testing.assert_allclose(matrix(compose(left, right)), matrix(left) @ matrix(right), atol=1e-12)


def test_the_argument_is_not_changed():
    command = home_command()
    next_command(command, np.ones(7, np.float32))
    np.testing.assert_array_equal(command, home_command())
