"""Loss of the Wan world model in closed form."""

import math
from dataclasses import dataclass

import pytest
import torch

from worldrl.diffusion.flow import shift_sigma
from worldrl.world_models.video.losses import chunk_loss, window_state
from worldrl.world_models.wan.dynamics import WanDynamics, bell_weight, flow_loss
from worldrl.world_models.wan.fit import TrainedParts, clip_sampler
from worldrl.world_models.wan.training import WanTraining

pytest.importorskip("diffusers")


class Recorder(WanDynamics):
    """Dynamics that keep what they are given and answer with one number everywhere."""

    def __init__(self, config, answer):
        torch.nn.Module.__init__(self)
        self.config, self.answer = config, torch.nn.Parameter(answer)

    def forward(self, x, sigma, action):
        self.x, self.sigma, self.action = x, sigma, action
        return self.answer.expand_as(x), torch.zeros(len(x), 12, 24)


@dataclass
class Clip:
    """Two clips of 1 + 1 + 2 latent frames (chunks of eight), and the draws of their loss."""

    latent: torch.Tensor
    sigma: torch.Tensor
    memory_noise: torch.Tensor
    noise: torch.Tensor
    valid: torch.Tensor

    def loss(self, dynamics, **over):
        parts = (self.latent[:, 2:], self.valid, self.latent[:, 0], self.latent[:, 1:2], torch.zeros(2, 13, 7))
        return dynamics.loss(*parts, generator=torch.Generator().manual_seed(1), **over)


@pytest.fixture
def clip():
    latent = torch.randn(2, 4, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)
    uniform = torch.rand(2, generator=draws).clamp_min(1e-3)
    torch.rand(2, generator=draws)  # whose levels are 1: none
    noise = torch.randn(2, 3, 4, 4, 4, generator=draws)
    sigma = shift_sigma(uniform, 5.0)
    return Clip(latent, sigma, noise[:, :1], noise[:, 1:], torch.ones(2, 8, dtype=torch.bool))


@pytest.fixture
def recorder(wan_config):
    """The real loss of dynamics that record."""

    def make(**over):
        return Recorder(wan_config(chunk_length=8, **over).dynamics, torch.full((1, 4, 1, 1, 1), 0.5))

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


def test_only_future_frames_are_learned(recorder, clip):
    dynamics = recorder(bell_weight=False)
    found = clip.loss(dynamics)
    expected = (0.5 - (clip.noise - clip.latent[:, 2:])).square().mean()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.logs["wm/flow_loss"], expected)
    assert torch.equal(found.level, clip.sigma[:, None])
    found.loss.backward()
    gradient = dynamics.answer.grad.flatten()
    assert torch.equal(gradient[:2], torch.zeros(2))
    assert (gradient[2:] != 0).all()


def test_each_frame_gets_its_own_noise(recorder, clip):
    dynamics = recorder(memory_noise=0.2)
    clip.loss(dynamics)
    x, sigma = dynamics.x, clip.sigma[:, None, None, None, None]
    assert torch.equal(x[:, 0], clip.latent[:, 0])  # the reference is clean
    torch.testing.assert_close(x[:, 1:2], 0.8 * clip.latent[:, 1:2] + 0.2 * clip.memory_noise)
    torch.testing.assert_close(x[:, 2:], (1 - sigma) * clip.latent[:, 2:] + sigma * clip.noise)
    assert torch.equal(dynamics.sigma, clip.sigma)  # the memory's noise is hidden from the model
    assert not torch.equal(clip.noise[:, 0], clip.memory_noise[:, 0])


def test_the_models_own_memory_gets_no_noise(recorder, clip):
    dynamics = recorder(memory_noise=0.2)
    clip.loss(dynamics, own=True)
    assert torch.equal(dynamics.x[:, :2], clip.latent[:, :2])


def test_frames_beyond_the_end_teach_nothing(clip):
    valid = clip.valid.clone()
    valid[0, 5:] = False  # the second latent frame of the first clip is not whole
    target, weight = clip.noise - clip.latent[:, 2:], torch.tensor([1.0, 3.0])
    velocity = torch.zeros_like(target)
    error = target.square().mean(dim=(2, 3, 4))
    expected = (error[0, 0] + 3 * error[1, 0] + 3 * error[1, 1]) / 3
    torch.testing.assert_close(flow_loss(velocity, target, valid, weight), expected)
    assert flow_loss(velocity, target, torch.zeros_like(valid), weight) == 0


def test_success_is_learned_beside_and_shapes_the_features(make_wan, push_episodes):
    model = make_wan(chunk_length=8)
    config = WanTraining(batch=2, event_share=0, static_share=0)
    draws = torch.Generator().manual_seed(0)
    batch = model.encoded(clip_sampler(model, push_episodes, config).sample(2, draws))
    part = TrainedParts(model).train()
    total, logs = part(batch, torch.Generator().manual_seed(1), depth=0, hidden=None, own=False)
    weight = model.config.success.loss_weight
    assert logs.keys() == {"wm/flow_loss", "wm/success_loss"}
    torch.testing.assert_close(total.detach(), logs["wm/flow_loss"] + weight * logs["wm/success_loss"])
    state, target = window_state(batch)
    alone, _ = chunk_loss(model, state, batch, target, 0, torch.Generator().manual_seed(1))
    assert torch.equal(alone, total)
    part.zero_grad()
    latent = torch.cat([batch.reference[:, None], batch.memory, batch.frames], dim=1)
    action = model.window_condition(batch, slice(0, 8), None)
    logits = part.success(
        part.dynamics(latent, torch.full((2,), 0.5), action)[1], part.success.embed(batch.instruction)
    )
    assert logits.shape == (2, 8)
    logits.sum().backward()
    blocks = [p for name, p in part.dynamics.named_parameters() if "lora_A" in name]
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in blocks)
