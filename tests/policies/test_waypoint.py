"""The waypoint that a policy reads from its images, and the way to it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, joint_targets
from worldrl.core.errors import SettingError
from worldrl.core.rng import row_streams
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.types import CorrelatedNoise
from worldrl.methods.imitation.config import Augmentation, BehaviourCloning
from worldrl.nn.vision import Points
from worldrl.policies.exploration import Exploration
from worldrl.policies.samples import Samples, make_samples
from worldrl.policies.token.policy import TokenPolicy
from worldrl.policies.token.waypoint import (
    CELLS,
    Augmented,
    Waypoint,
    WaypointHead,
    cell_loss,
    closing,
    way_features,
    waypoint_loss,
    waypoints_along,
)

UNIT = np.ones(7, np.float32)  # standard deviation of the commands


def augmented(rows: int, *, noise: Tensor | None = None, offset: Tensor | None = None):
    moved = torch.zeros(rows, 2).long() if offset is None else offset
    return Augmented(torch.ones(rows).bool(), torch.zeros(rows, 7) if noise is None else noise, [moved])


@pytest.fixture
def pick_and_place(make_episode):
    """Closes at step 2, opens at step 4; the command's first number is its row."""
    episode = make_episode(6)
    command = np.zeros((7, 7), np.float32)
    command[:, 0], command[:, 6] = np.arange(7), [-1, -1, -1, 1, 1, -1, -1]
    return replace(episode, command=command)


def waypoints(episode):
    return waypoints_along(episode.command, episode.actions, UNIT)


def test_waypoint_is_the_command_at_the_next_change_of_a_gripper_then_the_last(pick_and_place):
    assert waypoints(pick_and_place)[:, 0].tolist() == [2, 2, 2, 4, 4, 6]
    still = replace(pick_and_place, command=pick_and_place.command * np.array([1, 1, 1, 1, 1, 1, 0], np.float32))
    assert waypoints(still)[:, 0].tolist() == [6] * 6


def test_a_robot_without_grippers_goes_to_its_last_command(pick_and_place):
    names = tuple(f"joint_{n}.pos" for n in range(7))
    spec = joint_targets(names, (-9.0,) * 7, (9.0,) * 7)
    still = pick_and_place.command * np.array([1] * 6 + [0], np.float32)
    assert waypoints(replace(pick_and_place, command=still, actions=spec))[:, 0].tolist() == [6] * 6


def test_after_the_last_change_a_waypoint_is_the_next_corner(pick_and_place):
    command = np.zeros((9, 7), np.float32)
    command[:, 0], command[:, 6] = [0, 1, 2, 3, 4, 4, 4, 4, 4], [-1, *[1] * 8]
    command[:, 1] = [0, 0, 0, 0, 0, 1, 2, 3, 4]
    actions = pick_and_place.actions

    assert waypoints_along(command, actions, UNIT)[:, :2].tolist() == [[0, 0], *[[4, 0]] * 4, *[[4, 4]] * 3]

    straight = waypoints_along(command, actions, 3 * UNIT)  # off by less than a deviation
    assert straight[:, :2].tolist() == [[0, 0], *[[4, 4]] * 7]
    later = command * np.where(np.arange(7) == 6, [[1.0]] * 7 + [[-1.0]] * 2, 1).astype(np.float32)
    assert waypoints_along(later, actions, UNIT)[:, :2].tolist() == [[0, 0], *[[4, 2]] * 6, [4, 4]]


def test_samples_know_their_waypoint_and_joined_ones_which_is_unknown(pick_and_place):
    known = make_samples([pick_and_place], 3)
    imagined = Samples(known.image, known.command, known.chunk, known.instruction, known.task)

    both = Samples.join([known, imagined]).select(torch.tensor([3, 9]))

    assert both.waypoints[0, 0] == 4
    assert both.waypoints[1].isnan().all()


def test_way_is_given_on_two_scales():
    found = way_features(torch.tensor([[7.0, -0.2]]))
    torch.testing.assert_close(found, torch.tensor([[5.0, -0.2, math.tanh(35), math.tanh(-1)]]))


@pytest.fixture
def robot() -> ActionSpec:
    """Two numbers of one arm without a gripper."""
    return ActionSpec(("x", "y"), (-1.0,) * 2, (1.0,) * 2, (False,) * 2, (), -1.0, 1.0, 0.02)


def read(affine: torch.Tensor, correction: torch.Tensor) -> Waypoint:
    """What a head read, with one cell far from every target: its likelihood is the same for each."""
    rows = len(affine)
    return Waypoint(affine, correction, affine, torch.zeros(rows, 1, 1), torch.zeros(rows, 1, 2), torch.ones(2))


def test_loss_is_the_mean_over_rows_with_a_waypoint(robot):
    affine, correction = torch.zeros(3, 2, requires_grad=True), torch.zeros(3, 2, requires_grad=True)
    target = torch.tensor([[1.0, 0.0], [torch.nan, torch.nan], [0.05, 0.0]])

    loss = waypoint_loss(read(affine, correction), target, robot)
    loss.backward()

    errors = (1 - 0.05) / 2 + 0.05**2 / 0.2 / 2  # twice the mean of one part
    assert loss.item() == pytest.approx(errors + CELLS * (1 + 0.05) / 2 / 2)
    for part in (affine, correction):
        assert part.grad is not None
        assert part.grad[1].tolist() == [0, 0]
        assert (part.grad[[0, 2], 0] < 0).all()
    assert waypoint_loss(read(affine, correction), torch.full((3, 2), torch.nan), robot).item() == 0


def test_the_correction_takes_no_error_from_the_affine_part(robot):
    affine, target = torch.zeros(1, 2, requires_grad=True), torch.tensor([[1.0, -1.0]])

    waypoint_loss(read(affine, target), target, robot).backward()  # a correction that makes up for the whole error

    assert affine.grad is not None
    assert affine.grad.tolist() == [[-0.5, 0.5]]


def test_likelihood_by_cells_is_the_density_of_a_mixture(robot):
    heat, scale = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 2.0])
    of_cells = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    target = torch.tensor([[0.7, -0.2]])
    waypoint = Waypoint(target, target, target, heat.log()[None, :, None], of_cells[None], scale)

    density = (heat * torch.distributions.Laplace(of_cells, scale).log_prob(target).sum(dim=1).exp()).sum()
    constant = math.log(2) * 2  # of a Laplace distribution, which the loss leaves out

    assert cell_loss(waypoint, target, robot).item() == pytest.approx((-density.log().item() - constant) / 2)


def test_likelihood_by_cells_reaches_a_cell_of_hardly_any_heat(robot):
    score = torch.tensor([[[30.0], [0.0]]], requires_grad=True)  # [B, N, arms]: the heat of the second is 1e-13
    target = torch.tensor([[3.0, 3.0]])
    of_cells = torch.stack([torch.full((2,), -30.0), target[0]])[None]

    cell_loss(
        Waypoint(target, target, target, score.log_softmax(1), of_cells, torch.ones(2)), target, robot
    ).sum().backward()

    assert score.grad is not None
    assert score.grad[0, 1].item() == pytest.approx(-0.5, abs=1e-3)  # of a mean over two numbers
    plain = (score.detach().softmax(1)[0, 1]).item()
    assert plain < 1e-12


def test_in_cloning_the_decoders_gradient_reaches_the_corrections_weights_alone(policy, make_obs):
    head = policy.waypoint_head
    apart, correction = [head.camera, policy.image_encoder.query.weight], head.correction[-1].bias

    policy.logits(make_obs(2), augmented=augmented(2)).log_softmax(-1)[..., 0].sum().backward()
    assert all(weight.grad is None for weight in apart)
    assert correction.grad is not None
    assert correction.grad.any()

    policy.logits(make_obs(2)).log_softmax(-1)[..., 0].sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in apart)


def test_the_decoder_acts_by_the_way_and_not_by_the_place(policy, make_obs):
    obs, moved = make_obs(3), 0.05 * torch.arange(21.0).view(3, 7) / 21
    moved[:, 6] = 0  # the gripper says which part of the task it is
    there = replace(obs, command=obs.command + moved)

    plain = policy.logits(obs)
    other = policy.logits(there, augmented=augmented(3, noise=moved / policy.command_std))

    torch.testing.assert_close(other, plain, atol=2e-4, rtol=1e-4)
    assert not torch.allclose(policy.logits(there), plain, atol=1e-2)


def test_images_reach_the_decoder_by_the_waypoint_alone(policy, make_obs):
    obs = make_obs(2)
    other = replace(obs, image=255 - obs.image)
    waypoints = [policy.predict(seen)[1].pose for seen in (obs, other)]
    assert not torch.allclose(*waypoints, atol=1e-3)

    same = policy.logits(other, augmented=augmented(2, noise=waypoints[0] - waypoints[1]))

    torch.testing.assert_close(same, policy.logits(obs), atol=2e-4, rtol=1e-4)


def test_a_displaced_waypoint_moves_the_way_but_not_the_gripper(policy, make_obs):
    obs, displaced = make_obs(3), torch.linspace(-1, 1, 21).view(3, 7)
    arm = displaced * (torch.arange(7) < 6)

    moved, waypoint = policy.predict(obs, displaced=displaced)

    assert torch.equal(moved, policy.logits(obs, augmented=augmented(3, noise=arm)))
    assert torch.equal(waypoint.pose, policy.predict(obs)[1].pose)
    assert not torch.allclose(moved, policy.logits(obs), atol=1e-2)


def test_a_rollout_acts_by_its_displaced_waypoint_at_every_step(policy, make_obs):
    obs, exploration = make_obs(3), Exploration(0.5, 0.0, waypoint_noise=0.4)
    noise = exploration.correlated_noise(row_streams(0, ["habit"], 3), 7)

    chunk = policy.act(obs, generators=row_streams(1, ["act"], 3), temperature=0.5, correlated_noise=noise)

    logp = policy.log_softmax(obs, temperature=0.5, displaced=noise.waypoint)
    assert torch.equal(chunk.logp, logp.gather(-1, chunk.token[..., None]).squeeze(-1))
    part = noise.select(torch.tensor([2, 0]))
    assert torch.equal(part.waypoint, noise.waypoint[[2, 0]])
    both = CorrelatedNoise.join([noise.select(torch.tensor([row])) for row in range(3)])
    assert torch.equal(both.waypoint, noise.waypoint)


def test_a_policy_without_a_waypoint_refuses_to_displace_it(config, statistics, make_obs):
    noise = Exploration(waypoint_noise=0.4).correlated_noise(row_streams(0, ["habit"], 2), 7)
    without = TokenPolicy(replace(config, waypoint=False), statistics)
    with pytest.raises(SettingError, match="this policy has no waypoint"):
        without.act(make_obs(2), generators=row_streams(1, ["act"], 2), correlated_noise=noise)


def test_both_head_and_decoder_know_whether_the_gripper_is_commanded_to_close(policy, make_obs):
    obs = make_obs(2)
    closed = replace(obs, command=torch.cat([obs.command[:, :6], -obs.command[:, 6:]], dim=1))
    assert not torch.equal(policy.predict(closed)[1].pose, policy.predict(obs)[1].pose)
    assert closing(torch.tensor([[0.0] * 6 + [-1.0], [0.0] * 6 + [1.0]]), policy.actions).tolist() == [[-1], [1]]


def test_a_setting_of_the_other_kind_of_policy_is_refused():
    assert BehaviourCloning().augmentation(waypoint=True) == Augmentation(0.0, 0.5, 8)
    assert BehaviourCloning().augmentation(waypoint=True, targets=True) == Augmentation(0.0, 0.1, 8)
    assert BehaviourCloning(shift_pixels=2).augmentation(waypoint=False) == Augmentation(0.1, 0.0, 2)
    with pytest.raises(SettingError, match="command_dropout"):
        BehaviourCloning(command_dropout=0.0).augmentation(waypoint=True)
    with pytest.raises(SettingError, match="way_noise"):
        BehaviourCloning(way_noise=0.0).augmentation(waypoint=False)


def test_points_are_those_before_the_shift_of_training(policy, make_obs):
    obs = make_obs(2)
    offset = torch.tensor([[0, 0], [4, -2]])

    plain, moved = (policy.predict(obs, augmented=augmented(2, offset=o))[1].pose for o in (offset * 0, offset))

    assert torch.equal(plain[0], moved[0])
    assert not torch.allclose(plain[1], moved[1])


def test_without_a_waypoint_the_decoder_gets_the_inputs_of_older_policies(config, statistics, make_obs, tmp_path: Path):
    older = TokenPolicy(replace(config, waypoint=False), statistics).eval()
    older.save(tmp_path)
    stored = read_artefact(tmp_path, kind="policy")
    config = {name: value for name, value in stored.config.items() if name != "waypoint"}
    write_artefact(tmp_path, kind="policy", config=config, tensors=stored.tensors)

    again = TokenPolicy.load(tmp_path)

    assert again.config.waypoint is False
    logits, waypoint = again.predict(make_obs(2))
    assert waypoint is None
    assert torch.equal(logits, older.logits(make_obs(2)))
    seen = augmented(2, offset=torch.full((2, 2), 3))
    assert torch.equal(again.logits(make_obs(2), augmented=seen), logits)


def found(place: torch.Tensor, score: torch.Tensor) -> Points:
    """Points ``[B, K, 2]`` with the scores ``[B, K, N]`` of cells along a line."""
    line = torch.linspace(-1, 1, score.shape[2])
    return Points(place, torch.zeros(*place.shape[:2], 1), score, torch.stack([line, -line], dim=1))


def test_each_arm_reads_its_own_place_by_the_cameras_map():
    two = replace(TOOL_ACTIONS, **{n: 2 * getattr(TOOL_ACTIONS, n) for n in ("names", "low", "high", "targets")})
    two = replace(two, grippers=(6, 13))
    head = WaypointHead(two, (2, 6), 3, 2, 8)
    camera, phase = torch.randn(14, 2), torch.randn(14, 3)
    head.start(camera, phase)
    torch.nn.init.zeros_(head.pick.weight)
    with torch.no_grad():
        head.pick.bias.copy_(torch.tensor([50.0, 0, 0, 50.0]))  # the first arm's is the first point, as it were
    place, closed = torch.randn(5, 2, 2), torch.randn(5, 2)

    waypoint = head([found(place, torch.randn(5, 2, 4))], torch.randn(5, 3), closed)

    expected = torch.cat([place[:, 0] @ camera[:7].T, place[:, 1] @ camera[7:].T], dim=1)
    expected = expected + closed @ phase[:, :2].T + phase[:, 2]
    torch.testing.assert_close(waypoint.pose, expected)
    torch.testing.assert_close(waypoint.log_heat.exp().sum(dim=1), torch.ones(5, 2))


def test_what_a_cell_stands_for_is_what_the_affine_part_is_there():
    head = WaypointHead(TOOL_ACTIONS, (2, 6), 3, 1, 8)
    head.start(torch.randn(7, 2), torch.randn(7, 2))
    cell = found(torch.zeros(1, 2, 2), torch.zeros(1, 2, 4)).cells[2]
    text, phase = torch.randn(1, 3), torch.ones(1, 1)

    waypoint = head([found(cell.expand(1, 2, 2), torch.zeros(1, 2, 4))], text, phase)

    torch.testing.assert_close(waypoint.of_cells[:, 2], waypoint.affine)


def test_what_is_measured_of_a_gripper_begins_with_0():
    head = WaypointHead(TOOL_ACTIONS, (2, 6), 3, 2, 8)  # commanded to close, and measured to be open
    torch.nn.init.ones_(head.phase)

    head.start(torch.randn(7, 2), torch.tensor([[2.0, 5.0]] * 7))

    assert head.phase.tolist() == [[2, 0, 5]] * 7


def test_the_correction_starts_at_0_and_bends():
    head = WaypointHead(TOOL_ACTIONS, (2, 6), 3, 1, 8)
    text, phase, score = torch.randn(5, 3), torch.ones(5, 1), torch.randn(5, 2, 4)
    first, second = torch.randn(5, 2, 2), torch.randn(5, 2, 2)

    def bend():
        of = [head([found(place, score)], text, phase).pose for place in (first, second, first + second, 0 * first)]
        return of[0] + of[1] - of[2] - of[3]

    torch.testing.assert_close(bend(), torch.zeros(5, 7), atol=1e-5, rtol=0)
    torch.nn.init.ones_(head.correction[-1].weight)
    assert bend().abs().max() > 1e-4
