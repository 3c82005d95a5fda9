import math

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.nn.embed import patchify, sinusoidal, unpatchify


@pytest.mark.parametrize(("rows", "columns", "patch"), [(16, 16, 8), (16, 24, 8), (6, 4, 2), (5, 5, 5), (3, 2, 1)])
def test_unpatchify_inverts_patchify(rows, columns, patch):
    frames = torch.randn(2, 4, 3, rows, columns, generator=stream(0, "frames"))
    patches = patchify(frames, patch)
    assert patches.shape == (2, 4, rows // patch * (columns // patch), 3 * patch * patch)
    assert torch.equal(unpatchify(patches, patch, rows // patch), frames)


def test_a_patch_is_one_square_in_reading_order():
    frames = torch.arange(3 * 4 * 6).reshape(1, 3, 4, 6)
    patches = patchify(frames, 2)
    for number, (row, column) in enumerate([(0, 0), (0, 2), (0, 4), (2, 0), (2, 2), (2, 4)]):
        assert torch.equal(patches[0, number], frames[0, :, row : row + 2, column : column + 2].flatten())


def test_sinusoids_in_closed_form():
    embedded = sinusoidal(torch.tensor([0.0, 3.0]), 4, max_period=100.0)
    torch.testing.assert_close(embedded[0], torch.tensor([1.0, 1, 0, 0]))
    expected = [math.cos(3), math.cos(0.3), math.sin(3), math.sin(0.3)]
    torch.testing.assert_close(embedded[1], torch.tensor(expected))
    levels = sinusoidal(1000 * torch.linspace(0, 1, 50), 16)
    assert torch.cdist(levels, levels).add(torch.eye(50)).min() > 0.05  # levels can be distinguished
