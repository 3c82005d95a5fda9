"""The pose map: every token's offset from where the gripper will be."""

import torch

from worldrl.world_models.video.pose_map import OCTAVES, PoseMap, offset_features, token_grid


def test_token_grid_runs_right_then_down_over_the_centres():
    grid = token_grid(2, 4)
    assert grid.shape == (8, 2)
    assert torch.allclose(grid[0], torch.tensor([-0.75, -0.5]))
    assert torch.allclose(grid[1], torch.tensor([-0.25, -0.5]))
    assert torch.allclose(grid[4], torch.tensor([-0.75, 0.5]))


def test_offset_features_of_no_offset():
    features = offset_features(torch.zeros(2), OCTAVES)
    assert torch.equal(features[: 2 + 2 * OCTAVES], torch.zeros(2 + 2 * OCTAVES))  # the offset itself and its sines
    assert torch.equal(features[2 + 2 * OCTAVES :], torch.ones(2 * OCTAVES))


def test_moving_the_gripper_by_one_token_moves_the_map_by_one_token():
    pose_map = PoseMap(8, 8, frames=1)
    with torch.no_grad():
        pose_map.project.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    here = pose_map(torch.zeros(1, 1, 7)).unflatten(1, (8, 8))
    moved = torch.zeros(1, 1, 7)
    moved[..., 0] = 0.25  # one token to the right
    there = pose_map(moved).unflatten(1, (8, 8))
    assert torch.allclose(there[:, :, 1:], here[:, :, :-1], atol=1e-5)


def test_a_pinhole_camera_is_represented_exactly():
    """Any camera before the workspace: image = (r·(p-o), d·(p-o)) / (n·(p-o)) is what the projection computes."""
    pose_map, draw = PoseMap(2, 2, frames=1), torch.Generator().manual_seed(0)
    right, down, normal = torch.linalg.qr(torch.randn(3, 3, generator=draw)).Q
    origin = -3.0 * normal
    with torch.no_grad():
        pose_map.project.weight.copy_(torch.stack([right, down, normal]))
        pose_map.project.bias.copy_(-torch.stack([right @ origin, down @ origin, normal @ origin]))
    position = 2 * torch.rand(50, 3, generator=draw) - 1
    ray = position - origin
    expected = torch.stack([ray @ right, ray @ down], dim=-1) / (ray @ normal)[:, None]
    torch.testing.assert_close(pose_map.place(position), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(pose_map.place(position), expected)


def test_height_rotation_and_gripper_reach_every_token_and_the_projection_learns():
    pose_map = PoseMap(2, 2, frames=3)
    command = torch.randn(2, 3, 7)
    out = pose_map(command)
    assert out.shape == (2, 4, pose_map.channels)
    per_frame = out.unflatten(-1, (3, -1))
    assert torch.equal(per_frame[:, 1, :, -5:], command[:, :, 2:])
    out.sum().backward()
    assert pose_map.project.weight.grad is not None
    assert bool((pose_map.project.weight.grad[:, :3] != 0).any())
