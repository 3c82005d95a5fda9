"""The camera's map, from images of a square that moves as it is commanded."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.policies.samples import Samples
from worldrl.policies.token.camera import camera_map, least_squares, moving_places

ACROSS, DOWN = 20.0, 12.0  # pixels that a command of 1 moves the square, along y and along x
MEAN, DEVIATION = torch.zeros(7), torch.ones(7)


def walk(episodes: int, length: int = 12, *, camera_moves: bool = False) -> Samples:
    """Straight paths over a table: what moves is a square of 6 pixels, and its last command is the waypoint."""
    generator = torch.Generator().manual_seed(0)
    image = torch.zeros(episodes * length, 64, 64, 3, dtype=torch.uint8)
    command = torch.zeros(episodes * length, 7)
    command[:, 6] = -1
    waypoint = command.clone()
    for episode in range(episodes):
        begin, end = 2 * torch.rand(2, 2, generator=generator) - 1
        for step in range(length):
            row = episode * length + step
            command[row, :2] = torch.lerp(begin, end, step / (length - 1))
            waypoint[row, :2] = end
            seen = 2 * torch.rand(2, generator=generator) - 1 if camera_moves else command[row, :2]
            top, left = round(32 + DOWN * seen[0].item()) - 3, round(32 + ACROSS * seen[1].item()) - 3
            image[row, top : top + 6, left : left + 6] = 255
    texts = ("go",) * len(image)
    first = torch.arange(episodes).repeat_interleave(length) * length
    return Samples(image, command, torch.zeros(len(image), 2, 7), texts, texts, first=first, waypoint=waypoint)


def test_the_map_of_the_camera_is_found_from_what_moves():
    samples = walk(20)

    camera, phase = camera_map(samples, TOOL_ACTIONS, MEAN, DEVIATION) or pytest.fail("none found")

    # A command of 1 moves the square by so many pixels, and 32 are a unit of the image.
    expected = torch.zeros(7, 2)
    expected[0, 1], expected[1, 0] = 32 / DOWN, 32 / ACROSS
    torch.testing.assert_close(camera, expected, atol=0.1, rtol=0.02)
    known = torch.cat([phase[:2] @ torch.tensor([-1.0, 1.0]), phase[6:] @ torch.tensor([-1.0, 1.0])])
    torch.testing.assert_close(known, torch.tensor([0.0, 0.0, -1.0]), atol=0.05, rtol=0)


def test_commands_may_have_other_units():
    samples, deviation = walk(20), torch.tensor([0.1, 4, 1, 1, 1, 1, 1])
    scaled = replace(samples, command=samples.command * deviation, waypoint=samples.waypoints * deviation)

    camera, _ = camera_map(scaled, TOOL_ACTIONS, MEAN, deviation) or pytest.fail("none found")

    plain, _ = camera_map(samples, TOOL_ACTIONS, MEAN, DEVIATION) or pytest.fail("none found")
    torch.testing.assert_close(camera, plain, atol=1e-4, rtol=1e-4)


def test_a_camera_that_moves_or_shows_no_motion_tells_nothing():
    assert camera_map(walk(20, camera_moves=True), TOOL_ACTIONS, MEAN, DEVIATION) is None
    still = walk(20)
    assert camera_map(replace(still, image=torch.zeros_like(still.image)), TOOL_ACTIONS, MEAN, DEVIATION) is None
    assert camera_map(replace(still, waypoint=None), TOOL_ACTIONS, MEAN, DEVIATION) is None
    assert camera_map(walk(20, length=2), TOOL_ACTIONS, MEAN, DEVIATION) is not None
    assert camera_map(replace(walk(1), first=torch.arange(12)), TOOL_ACTIONS, MEAN, DEVIATION) is None


def test_motion_from_an_episodes_end_to_the_next_ones_beginning_is_none():
    assert len(moving_places(walk(3, length=4))[0]) == 3 * 3


def test_least_squares_of_a_line():
    inputs = torch.tensor([[0.0], [1.0], [2.0], [3.0]])

    weight, constant = least_squares(inputs, 2 * inputs + 5)

    assert weight.item() == pytest.approx(2 / (1 + 1e-3 / 1.25))  # the ridge, over the inputs' variance
    assert constant.item() == pytest.approx(8 - 1.5 * weight.item())
