import pytest
import torch

from worldrl.core.rng import stream
from worldrl.world_models.video.heads import GripperHead, opening_loss

UNIT = 0.02


def test_the_loss_counts_valid_frames_in_units_of_two_centimetres():
    opening = torch.tensor([[0.00, 0.04], [0.08, 0.02]])[..., None]
    valid = torch.tensor([[True, True], [True, False]])
    predicted = opening / UNIT + torch.tensor([[1.0, 0.0], [2.0, 9.0]])[..., None]
    assert opening_loss(predicted, opening, valid, UNIT).item() == pytest.approx((1 + 0 + 4) / 3)
    assert opening_loss(predicted, opening, torch.zeros_like(valid), UNIT).item() == 0


def test_the_head_learns_a_bit_that_stands_in_one_token():
    """One of 16 tokens tells, apart in each frame, whether something is held."""
    draw = stream(0, "gripper-head")
    head = GripperHead(16, 2, 2)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)

    def batch(rows):
        features = 0.3 * torch.randn(rows, 16, 16, generator=draw)
        held = torch.randint(2, (rows, 2), generator=draw)
        features[:, 5, :2] = 2.0 * held - 1
        features[:, 5, 2] = 3
        return features, UNIT * held[..., None].float(), torch.ones(rows, 2, dtype=torch.bool)

    for _ in range(300):
        features, opening, valid = batch(64)
        loss = opening_loss(head(features), opening, valid, UNIT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features, opening, valid = batch(500)
    assert opening_loss(head(features), opening, valid, UNIT).item() < 0.03  # the mean would score 0.25


def test_two_grippers_count_alike():
    predicted = torch.tensor([[[1.0, 3.0]]])
    found = opening_loss(predicted, torch.zeros(1, 1, 2), torch.ones(1, 1, dtype=torch.bool), UNIT)
    assert found.item() == pytest.approx((1 + 9) / 2)
    assert GripperHead(16, 2, 2, 2)(torch.zeros(3, 4, 16)).shape == (3, 2, 2)
