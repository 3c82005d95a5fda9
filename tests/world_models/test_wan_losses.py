"""Loss of the Wan world model in closed form."""

import math
from dataclasses import replace

import pytest
import torch

from worldrl.diffusion.flow import shift_sigma
from worldrl.world_models.wan.losses import WanLoss, bell_weight, draw_clip, flow_loss

pytest.importorskip("diffusers")


class Recorder(torch.nn.Module):
    """Dynamics that keep what they are given and answer with one number everywhere."""

    tokens = 4

    def __init__(self, answer):
        super().__init__()
        self.answer = torch.nn.Parameter(answer)
        self.width = 24

    def forward(self, x, sigma, action):
        self.x, self.sigma, self.action = x, sigma, action
        return self.answer.expand_as(x), torch.zeros(len(x), 12, self.width)


@pytest.fixture
def clip(wan_config):
    """Two clips of 1 + 1 + 2 latent frames (chunks of eight)."""
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(2, 4, 4, 4, 4, generator=generator)
    return draw_clip(
        latent,
        torch.zeros(2, 13, 7),
        wan_config(chunk_length=8),
        success=torch.zeros(2, 8, dtype=torch.bool),
        valid=torch.ones(2, 8, dtype=torch.bool),
        instruction=["pick up the red cube"] * 2,
        generator=generator,
    )


@pytest.fixture
def loss(make_wan):
    """The real loss, its dynamics replaced by a recorder."""

    def make(**over):
        part = WanLoss(make_wan(chunk_length=8, **over))
        part.dynamics = Recorder(torch.full((1, 4, 1, 1, 1), 0.5))
        return part

    return make


def test_bell_has_mean_one_and_ends_at_pure_noise():
    levels = shift_sigma(torch.arange(1, 1001, dtype=torch.float64) / 1000, 5.0)
    weight = bell_weight(levels, 5.0)
    assert weight.mean().item() == pytest.approx(1)
    assert weight[-1].item() == pytest.approx(0)
    assert (weight >= 0).all()
    ratio = bell_weight(torch.tensor([0.5, 0.8]), 5.0)
    expected = (1 - math.exp(-0.5)) / (math.exp(-2 * 0.3**2) - math.exp(-0.5))
    assert (ratio[0] / ratio[1]).item() == pytest.approx(expected)


def test_only_future_frames_are_learned(loss, clip):
    part = loss(bell_weight=False)
    part.config.success.loss_weight = 0.0
    total, logs = part(clip)
    future = clip.latent[:, 2:]
    expected = (0.5 - (clip.noise - future)).square().mean()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(logs["wm/flow_loss"], expected)
    total.backward()
    gradient = part.dynamics.answer.grad.flatten()
    assert torch.equal(gradient[:2], torch.zeros(2))
    assert (gradient[2:] != 0).all()


def test_each_frame_gets_its_own_noise(loss, clip):
    part = loss(memory_noise=0.2)
    part(clip)
    x, sigma = part.dynamics.x, clip.sigma[:, None, None, None, None]
    assert torch.equal(x[:, 0], clip.latent[:, 0])  # the reference is clean
    torch.testing.assert_close(x[:, 1:2], 0.8 * clip.latent[:, 1:2] + 0.2 * clip.memory_noise)
    torch.testing.assert_close(x[:, 2:], (1 - sigma) * clip.latent[:, 2:] + sigma * clip.noise)
    assert torch.equal(part.dynamics.sigma, clip.sigma)  # of the memory's noise the model is not told
    assert not torch.equal(clip.noise[:, 0], clip.memory_noise[:, 0])


def test_the_models_own_memory_gets_no_noise(loss, clip):
    part = loss(memory_noise=0.2)
    part(replace(clip, own=True))
    assert torch.equal(part.dynamics.x[:, :2], clip.latent[:, :2])


def test_frames_beyond_the_end_teach_nothing(clip):
    valid = clip.valid.clone()
    valid[0, 5:] = False  # the second latent frame of the first clip is not whole
    short = replace(clip, valid=valid)
    future, weight = clip.latent[:, 2:], torch.tensor([1.0, 3.0])
    velocity = torch.zeros_like(future)
    error = (clip.noise - future).square().mean(dim=(2, 3, 4))
    expected = (error[0, 0] + 3 * error[1, 0] + 3 * error[1, 1]) / 3
    torch.testing.assert_close(flow_loss(velocity, short, future, weight), expected)
    nothing = replace(clip, valid=torch.zeros_like(valid))
    assert flow_loss(velocity, nothing, future, weight) == 0


def test_success_is_learned_beside_and_shapes_the_features(make_wan, clip):
    part = WanLoss(make_wan(chunk_length=8))
    total, logs = part(clip)
    weight = part.config.success.loss_weight
    torch.testing.assert_close(total.detach(), logs["wm/flow_loss"] + weight * logs["wm/success_loss"])
    part.zero_grad()
    logits = part.success(part.dynamics(clip.latent, clip.sigma, clip.action)[1], part.success.embed(clip.instruction))
    assert logits.shape == (2, 8)
    logits.sum().backward()
    blocks = [p for name, p in part.dynamics.named_parameters() if "lora_A" in name]
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in blocks)


def test_same_generator_same_clip(clip, wan_config):
    def again(seed):
        return draw_clip(
            clip.latent, clip.action, wan_config(chunk_length=8), success=clip.success, valid=clip.valid,
            instruction=clip.instruction, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    one, two, other = again(0), again(0), again(1)
    assert torch.equal(one.noise, two.noise)
    assert torch.equal(one.sigma, two.sigma)
    assert not torch.equal(one.noise, other.noise)
