"""Modulated convolutions and the U-Net made of them."""

import pytest
import torch
import torch.nn.functional as F

from worldrl.core.rng import initial_weights, stream
from worldrl.nn.convolution import AdaptiveGroupNorm, ImageAttention, ModulatedResidual, UNet, groups


@pytest.fixture
def inputs():
    draw = stream(0, "inputs")
    return torch.randn(3, 8, 8, 8, generator=draw), torch.randn(3, 6, generator=draw)


def test_adaptive_norm_agrees_with_the_formula(inputs):
    x, condition = torch.randn(3, 64, 4, 4, generator=stream(0, "x")), inputs[1]
    with initial_weights(0, "norm"):
        norm = AdaptiveGroupNorm(64, 6)
    assert (groups(64), groups(31), groups(32), groups(16)) == (2, 1, 1, 1)
    grouped = x.reshape(3, 2, -1)
    scaled = (grouped - grouped.mean(-1, keepdim=True)) * torch.rsqrt(
        grouped.var(-1, keepdim=True, correction=0) + 1e-5
    )
    scale, shift = F.linear(condition, norm.modulation.weight, norm.modulation.bias)[..., None, None].split(64, dim=1)
    torch.testing.assert_close(norm(x, condition), scaled.view_as(x) * (1 + scale) + shift, atol=1e-5, rtol=1e-5)


def test_blocks_begin_as_their_input(inputs):
    x, condition = inputs
    block, attention = ModulatedResidual(8, 8, 6), ImageAttention(8, 2)
    with torch.no_grad():
        block.conv_2.bias.zero_()
        attention.attention.out.bias.zero_()
    assert torch.equal(block(x, condition), x)
    assert torch.equal(attention(x), x)
    wider = ModulatedResidual(8, 16, 6)
    with torch.no_grad():
        wider.conv_2.bias.zero_()
    assert torch.equal(wider(x, condition), wider.skip(x))


@pytest.fixture
def unet():
    with initial_weights(0, "unet"):
        net = UNet(8, levels=3, blocks=2, condition=6, heads=2)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def test_unet_halves_at_every_level_and_comes_back(unet, inputs):
    x, condition = inputs
    out, bottom = unet(x, condition)
    assert (out.shape, bottom.shape) == ((3, 8, 8, 8), (3, 8, 2, 2))
    blocks = [m for m in unet.modules() if isinstance(m, ModulatedResidual)]
    assert len(blocks) == 3 * 2 + 2 + 3 * 3


def test_every_pixel_sees_every_pixel_and_its_own_condition_alone(unet, inputs):
    x, condition = inputs
    out, _ = unet(x, condition)
    changed = x.clone()
    changed[0, :, 7, 7] += 1
    moved, _ = unet(changed, condition)
    assert ((moved[0] - out[0]).abs().amax(dim=0) > 1e-7).all()
    assert torch.equal(moved[1:], out[1:])
    other = condition.clone()
    other[0] += 1
    told, _ = unet(x, other)
    assert (told[0] - out[0]).abs().max() > 1e-3
    assert torch.equal(told[1:], out[1:])


def test_every_weight_of_the_unet_is_used(unet, inputs):
    out, bottom = unet(*inputs)
    (out.square().mean() + bottom.square().mean()).backward()
    assert [name for name, p in unet.named_parameters() if p.grad is None or not p.grad.any()] == []
