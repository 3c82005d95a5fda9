import pytest
import torch

from worldrl.core.rng import stream
from worldrl.policies.token import tokens

LOW = torch.tensor([-1.0, -0.5, -0.03, 0.2, -1.0])
HIGH = torch.tensor([1.0, 0.7, 0.04, 0.2, 1.0])
STILL = 3
BOX = (torch.tensor(-1.0), torch.tensor(1.0))


@pytest.mark.parametrize("bins", [2, 9, 33, 256])
def test_decode_of_encode_is_within_half_a_bin_inside_the_range(bins: int):
    uniform = torch.rand(4000, 5, generator=stream(0, "actions"))
    action = LOW + uniform * (HIGH - LOW)

    error = (tokens.decode(tokens.encode(action, LOW, HIGH, bins), LOW, HIGH, bins, bounds=BOX) - action).abs()

    assert (error <= 0.5 * tokens.bin_spacing(LOW, HIGH, bins) + 1e-6).all()


@pytest.mark.parametrize("bins", [2, 9, 33, 256])
def test_encode_of_decode_is_the_identity_on_allowed_tokens(bins: int):
    token = torch.arange(bins)[:, None].repeat(1, 5)
    token[:, STILL] = 0

    assert torch.equal(tokens.encode(tokens.decode(token, LOW, HIGH, bins, bounds=BOX), LOW, HIGH, bins), token)


def test_extreme_gripper_commands_are_exact():
    action = torch.tensor([[0.0, 0, 0, 0.2, -1], [0.0, 0, 0, 0.2, 1]])

    token = tokens.encode(action, LOW, HIGH, 33)

    assert token[:, 4].tolist() == [0, 32]
    assert tokens.decode(token, LOW, HIGH, 33, bounds=BOX)[:, 4].tolist() == [-1, 1]


def test_actions_outside_the_range_take_the_nearest_end():
    action = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0, -1.0]])

    decoded = tokens.decode(tokens.encode(action, LOW, HIGH, 33), LOW, HIGH, 33, bounds=BOX)

    torch.testing.assert_close(decoded, torch.stack([HIGH, LOW]))


def test_decoded_actions_stay_in_the_unit_box_even_if_the_statistics_do_not():
    low, high = torch.tensor([-3.0]), torch.tensor([2.0])

    decoded = tokens.decode(torch.arange(9)[:, None], low, high, 9, bounds=BOX)

    assert decoded.min() == -1
    assert decoded.max() == 1


def test_still_dimension_is_constant_and_allows_one_bin():
    decoded = tokens.decode(torch.arange(33)[:, None].repeat(1, 5), LOW, HIGH, 33, bounds=BOX)

    assert (decoded[:, STILL] == LOW[STILL]).all()
    assert tokens.allowed_bins(LOW, HIGH, 33).sum(dim=1).tolist() == [33, 33, 33, 1, 33]


@pytest.mark.parametrize("width", [0.0, 0.5, 1.5])
def test_soft_target_is_a_distribution_peaked_at_the_token(width: float):
    action = LOW + torch.rand(200, 5, generator=stream(1, "actions")) * (HIGH - LOW)

    target = tokens.soft_target(action, LOW, HIGH, bins=33, width=width)

    torch.testing.assert_close(target.sum(dim=-1), torch.ones(200, 5))
    assert torch.equal(target.argmax(dim=-1), tokens.encode(action, LOW, HIGH, 33))
    assert (target[:, STILL, 0] == 1).all()
    assert (target[:, STILL, 1:] == 0).all()


def test_soft_target_has_the_width_asked_for():
    target = tokens.soft_target(torch.zeros(1, 5), LOW, HIGH, bins=33, width=1.5)[0, 0]
    index = torch.arange(33)
    mean = (target * index).sum()

    torch.testing.assert_close(mean, torch.tensor(16.0))
    torch.testing.assert_close(((index - mean) ** 2 * target).sum().sqrt(), torch.tensor(1.5), atol=0.01, rtol=0)
