from dataclasses import dataclass

import torch

from worldrl.core.types import ImaginedVideos
from worldrl.rewards.decoded import DecodedReward


@dataclass
class Decoded:
    mean: torch.Tensor
    std: torch.Tensor


class Brightness:
    """Decodes two joints from the brightness of a frame."""

    def __init__(self):
        self.calls = 0

    def decode(self, frames):
        self.calls += 1
        light = frames.float().mean(dim=(2, 3, 4)) / 100
        return Decoded(torch.stack([light, -light], dim=-1), torch.zeros(*light.shape, 2))


def test_every_term_sees_the_joints_the_time_and_the_limits():
    decoder = Brightness()
    reward = DecodedReward(
        decoder,
        {
            "slow": lambda joints, dt, limits: -(joints.diff(dim=1) / dt).abs().amax(dim=(1, 2)),
            "inside": lambda joints, dt, limits: -(joints.abs() - limits).clamp_min(0).sum(dim=(1, 2)),
        },
        limits=1.0,
    )
    frames = torch.tensor([[50, 60, 90], [100, 100, 150]], dtype=torch.uint8).view(2, 3, 1, 1, 1).expand(2, 3, 4, 4, 3)
    found = reward.score(ImaginedVideos(frames, torch.zeros(2, 2, 1, 1, 1), 0.1, ["a", "b"]))
    torch.testing.assert_close(found, torch.tensor([[-3.0, 0.0], [-5.0, -1.0]]))
    assert (reward.names, decoder.calls) == (("slow", "inside"), 1)
