"""Layout and action channels of the Wan dynamics, against diffusers' own forward pass."""

import pytest
import torch

from worldrl.world_models.wan.config import WanDynamicsConfig
from worldrl.world_models.wan.dynamics import WanDynamics, grouped_actions
from worldrl.world_models.wan.folder import load_transformer, open_base

pytest.importorskip("diffusers")

SHAPE = (4, 4, 4)


def config(**over):
    return WanDynamicsConfig(**({"chunk_length": 8, "adapter": "full"} | over))


@pytest.fixture
def build(wan_base):
    def make(**over):
        return WanDynamics(load_transformer(open_base(wan_base)), config(**over), SHAPE).eval()

    return make


@pytest.fixture
def given():
    """A clip of 1 + 1 + 2 latent frames, two levels, 13 actions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, *SHAPE, generator=generator)
    action = torch.rand(2, 13, 7, generator=generator) * 2 - 1
    return x, torch.tensor([0.3, 0.9]), action


def shake(module, size=0.3):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def test_actions_are_grouped_by_latent_frame():
    action = torch.arange(9.0)[None, :, None].expand(1, 9, 7)
    groups = grouped_actions(action, 4)
    assert groups.shape == (1, 3, 28)
    assert groups[0, :, ::7].tolist() == [[0, 0, 0, 0], [1, 2, 3, 4], [5, 6, 7, 8]]


def test_given_frames_are_at_timestep_zero_and_future_ones_at_their_level(build, given):
    model, (_, sigma, _) = build(), given
    assert model.tokens == 4
    timesteps = model.timesteps(sigma)
    assert timesteps.shape == (2, 16)
    assert (timesteps[:, :8] == 0).all()
    torch.testing.assert_close(timesteps[:, 8:], torch.tensor([[300.0], [900.0]]).expand(2, 8))


def test_level_reaches_future_tokens_alone(build, given):
    model, (_, sigma, action) = build(), given
    embedder = model.transformer.condition_embedder
    shake(embedder)

    def modulation(level):
        return embedder(model.timesteps(level).flatten(), action, timestep_seq_len=16)[1]

    one, other = modulation(sigma), modulation(sigma / 2)
    assert torch.equal(one[:, :8], other[:, :8])
    assert ((one - other)[:, 8:].abs().amax(dim=-1) > 1e-3).all()


def test_untrained_model_is_the_published_one_without_text(build, wan_base, given):
    """Bit for bit up to the order of sums: stock forward, per-token timesteps, our positions in the text's place."""
    model, (x, sigma, action) = build(), given
    stock = load_transformer(open_base(wan_base)).eval()
    position = model.transformer.condition_embedder.action_position

    class Text(torch.nn.Module):
        def forward(self, hidden):
            return position.expand(len(hidden), -1, -1)

    stock.condition_embedder.text_embedder = Text()
    text = torch.zeros(2, 13, 16)
    expected = stock(x.transpose(1, 2), model.timesteps(sigma), text, return_dict=False)[0].transpose(1, 2)
    velocity, features = model(x, sigma, action)
    torch.testing.assert_close(velocity, expected, atol=2e-6, rtol=2e-5)
    assert features.shape == (2, 16, 24)
    assert torch.equal(model(x, sigma, -action)[0], velocity)  # unconditional: actions do not matter yet


def test_gradients_reach_both_channels_from_the_first_step_on(build, given):
    model, (x, sigma, action) = build(), given
    embedder = model.transformer.condition_embedder

    def gradients():
        model.zero_grad()
        model(x, sigma, action)[0][:, 2:].square().mean().backward()
        return {name: p.grad.abs().max().item() for name, p in embedder.named_parameters() if "action_" in name}

    first = gradients()
    last = {name: value for name, value in first.items() if ".2." in name or "position" in name}
    assert len(first) == 9
    assert len(last) == 5
    assert min(last.values()) > 0
    assert max(value for name, value in first.items() if name not in last) == 0  # behind a layer of zeros
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    assert min(gradients().values()) > 0
    assert not torch.equal(model(x, sigma, -action)[0], model(x, sigma, action)[0])


@pytest.mark.parametrize("channel", ["action_tokens", "action_modulation"])
def test_each_channel_alone_carries_the_actions(build, given, channel):
    model, (x, sigma, action) = build(**{channel: False}), given
    shake(model.transformer.condition_embedder)
    moved = action.clone()
    moved[:, -1] = -moved[:, -1]
    assert (model(x, sigma, moved)[0] - model(x, sigma, action)[0]).abs().max() > 1e-4


def test_order_of_a_chunks_actions_matters(build, given):
    model, (x, sigma, action) = build(action_modulation=False), given
    shake(model.transformer.condition_embedder)
    swapped = action.clone()
    swapped[:, [9, 10]] = swapped[:, [10, 9]]
    assert (model(x, sigma, swapped)[0] - model(x, sigma, action)[0]).abs().max() > 1e-6


def test_image_to_video_weights_get_a_mask_and_lose_their_image_layers(publish_wan, tmp_path, given):
    transformer = {"in_channels": 12, "image_dim": 8, "added_kv_proj_dim": 24}
    base = open_base(publish_wan(tmp_path / "i2v", transformer=transformer))
    model, (x, sigma, action) = WanDynamics(load_transformer(base), config(), SHAPE).eval(), given
    seen = []
    model.transformer.patch_embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    velocity, _ = model(x, sigma, action)
    assert velocity.shape == x.shape
    noisy, mask, known = seen[0].transpose(1, 2).split([4, 4, 4], dim=2)
    assert torch.equal(noisy, x)
    assert (mask[:, :2] == 1).all()
    assert (mask[:, 2:] == 0).all()
    assert torch.equal(known[:, :2], x[:, :2])
    assert (known[:, 2:] == 0).all()
    assert not [name for name, _ in model.named_parameters() if "add_" in name or "image" in name or "text" in name]


def test_recomputed_blocks_give_the_same_gradients(build, given):
    model, (x, sigma, action) = build(), given
    shake(model.transformer.condition_embedder)
    results = []
    for recompute in (False, True):
        if recompute:
            model.transformer.enable_gradient_checkpointing()
        model.train()
        model.zero_grad()
        model(x, sigma, action)[0][:, 2:].square().mean().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
