import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from worldrl.core.embodiment import (
    Embodiment,
    JointEmbodiment,
    embodiment_from_json,
    integrate_commands,
    next_command,
    quaternion_from_rotvec,
    quaternion_product,
    rotvec_from_quaternion,
)
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.workers.libero import facts
from worldrl_envs import control
from worldrl_envs.bimanual.control import SIXAXIS_PAIR

PANDA = Embodiment(**asdict(control.PANDA))
HOME = torch.tensor(control.home_command())


def rotvecs(count: int, largest: float) -> torch.Tensor:
    generator = stream(0, "rotvecs", count)
    direction = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator, dtype=torch.float64), dim=-1)
    return direction * torch.rand(count, 1, generator=generator, dtype=torch.float64) * largest


def test_json_round_trip():
    assert Embodiment.from_json(json.loads(json.dumps(PANDA.to_json()))) == PANDA


def test_both_conventions_come_back_as_what_they_are():
    pair = JointEmbodiment.from_json(asdict(SIXAXIS_PAIR))
    for embodiment in (PANDA, pair):
        assert embodiment_from_json(json.loads(json.dumps(embodiment.to_json()))) == embodiment
    # The fingerprint of every dataset of one arm hashes this text: no key may be added to it.
    assert "kind" not in PANDA.to_json()


def test_hold_keeps_the_command():
    pair = JointEmbodiment.from_json(asdict(SIXAXIS_PAIR))
    targets = np.linspace(0, 1, 14, dtype=np.float32)
    np.testing.assert_array_equal(pair.actions.hold(targets), targets)
    pose = np.array([0.5, 0.1, 0.1, 0.1, 0.2, 0.3, 1], np.float32)
    np.testing.assert_allclose(control.next_command(pose, PANDA.actions.hold(pose)), pose, atol=1e-7)


def test_names_and_ranges_go_together():
    pair = JointEmbodiment.from_json(asdict(SIXAXIS_PAIR))
    for embodiment, size in ((PANDA, 7), (pair, 14)):
        low, high = embodiment.actions.bounds
        assert low.shape == high.shape == (size,) == (embodiment.actions.size,) == (len(embodiment.command_names),)
        assert np.all(low < high)
    assert len(PANDA.state_names) == 8


def test_quaternions_agree_with_scipy():
    a, b = rotvecs(200, 3.1), rotvecs(200, 3.1).flip(0)
    ours = rotvec_from_quaternion(quaternion_product(quaternion_from_rotvec(a), quaternion_from_rotvec(b)))
    theirs = (Rotation.from_rotvec(a.numpy()) * Rotation.from_rotvec(b.numpy())).as_rotvec()
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-9)


def test_small_and_zero_rotations_are_exact_and_differentiable():
    for size in (0.0, 1e-30, 1e-12, 1e-9, 1e-7, 1e-4):
        rotvec = torch.tensor([size, -size, 0.5 * size], dtype=torch.float64, requires_grad=True)
        back = rotvec_from_quaternion(quaternion_from_rotvec(rotvec))
        torch.testing.assert_close(back, rotvec, rtol=1e-6, atol=1e-30)
        (gradient,) = torch.autograd.grad(back.sum(), rotvec)
        assert gradient.isfinite().all()


def test_the_torch_twin_follows_the_simulators_arithmetic():
    generator = np.random.default_rng(0)
    command_env = control.home_command()
    command = HOME.clone()
    for _ in range(300):
        action = generator.uniform(-1, 1, 7).astype(np.float32)
        command_env = control.next_command(command_env, action)
        command = next_command(PANDA, command, torch.tensor(action))
        np.testing.assert_allclose(command.numpy(), command_env, atol=3e-5)
        command = torch.tensor(command_env)  # one step's difference, not its accumulation


def test_the_null_action_only_opens_the_gripper():
    closed = torch.tensor([0.5, 0.1, 0.1, 0.1, -0.2, 0.3, 1.0])
    after = next_command(PANDA, closed, torch.tensor([0.0] * 6 + [-1.0]))
    torch.testing.assert_close(after[:6], closed[:6], rtol=0, atol=1e-6)
    assert after[6] == -1


def test_position_scale_and_workspace():
    action = torch.tensor([1.0, -0.5, 0, 0, 0, 0, 1])
    after = next_command(PANDA, HOME, action)
    expected = HOME[:3] + PANDA.position_scale * action[:3]
    torch.testing.assert_close(after[:3], expected)
    assert after[6] == 1
    for sign, corner in ((1, PANDA.workspace_high), (-1, PANDA.workspace_low)):
        command = HOME
        for _ in range(50):
            command = next_command(PANDA, command, torch.tensor([sign, sign, sign, 0, 0, 0, 0.0]))
        torch.testing.assert_close(command[:3], torch.tensor(corner))


def test_a_response_shortens_every_step_and_one_leaves_files_as_they_were():
    slow = replace(PANDA, response=0.25)
    command, action = torch.tensor([[0.5, 0.0, 0.1, 0.0, 0.0, 0.1, 1.0]]), torch.tensor([[1.0, -1, 0, 0, 0, 1, -1]])
    full, part = (next_command(robot, command, action) - command for robot in (PANDA, slow))
    torch.testing.assert_close(part[:, :6], 0.25 * full[:, :6])
    assert "response" not in PANDA.to_json()
    assert Embodiment.from_json(slow.to_json()) == slow
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(SettingError, match="response: must be in"):
            replace(PANDA, response=wrong)


def test_the_response_of_libero_is_its_controllers():
    stiffness, step_s, parts = 150.0, 1 / facts.CONTROL_HZ, 2000
    place = speed = 0.0
    for _ in range(40):
        before, goal = place, place + facts.POSITION_SCALE
        for _ in range(parts):  # x'' = k (goal - x) - 2 √k x'
            speed += step_s / parts * (stiffness * (goal - place) - 2 * math.sqrt(stiffness) * speed)
            place += step_s / parts * speed
    assert (place - before) / facts.POSITION_SCALE == pytest.approx(facts.RESPONSE, rel=0.01)


def test_rotation_composes_from_the_left_and_stops_at_its_limit():
    command = torch.tensor([0.5, 0, 0.1, 0.3, 0, 0, -1])
    after = next_command(PANDA, command, torch.tensor([0, 0, 0, 0, 1.0, 0, -1]))
    expected = Rotation.from_rotvec([0, PANDA.rotation_scale, 0]) * Rotation.from_rotvec([0.3, 0, 0])
    np.testing.assert_allclose(after[3:6].numpy(), expected.as_rotvec(), atol=1e-6)
    for _ in range(100):
        command = next_command(PANDA, command, torch.tensor([0, 0, 0, 1.0, 0, 0, -1]))
    assert command[3:6].norm().item() == pytest.approx(PANDA.max_rotation, abs=1e-6)
    assert command[3].item() == pytest.approx(PANDA.max_rotation, abs=1e-3)


def test_integrate_commands_is_the_loop_and_rows_are_independent():
    action = torch.rand(3, 8, 7, generator=stream(0, "actions")) * 2 - 1
    start = HOME.expand(3, 7)
    poses = integrate_commands(PANDA, start, action)
    assert poses.shape == (3, 8, 7)
    command = start[1]
    for step in range(8):
        command = next_command(PANDA, command, action[1, step])
        torch.testing.assert_close(poses[1, step], command)


def test_half_a_turn_is_unambiguous_in_length():
    quaternion = quaternion_from_rotvec(torch.tensor([math.pi, 0.0, 0.0], dtype=torch.float64))
    assert rotvec_from_quaternion(quaternion).norm().item() == pytest.approx(math.pi)
    assert rotvec_from_quaternion(-quaternion).norm().item() == pytest.approx(math.pi)
