"""What tests of several algorithms share."""

import pytest
import torch

from worldrl.policies.samples import Samples


@pytest.fixture
def no_demonstrations(tiny_policy):
    """Samples that ask for nothing that succeeds."""
    length = tiny_policy().chunk_length
    image = torch.zeros(4, 16, 16, 3, dtype=torch.uint8)
    return Samples(image, torch.zeros(4, 7), torch.zeros(4, length, 7), ("pick up",) * 4, ("PickRedCube",) * 4)
