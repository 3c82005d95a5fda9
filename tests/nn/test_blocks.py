import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.nn.blocks import Block, Mlp, ModulatedBlock


@pytest.fixture
def block():
    with initial_weights(0, "block"):
        return ModulatedBlock(16, 2)


@pytest.fixture
def inputs():
    draw = stream(0, "inputs")
    return [torch.randn(*shape, generator=draw) for shape in ((2, 5, 16), (2, 6, 16), (2, 3, 16))]


def test_closed_gates_leave_only_the_attention_to_actions(block, inputs):
    tokens, modulation, context = inputs
    modulation = modulation.clone()
    modulation[:, 2], modulation[:, 5] = -block.table[2], -block.table[5]
    expected = tokens + block.cross_attention(block.norm_cross(tokens), context)
    torch.testing.assert_close(block(tokens, modulation, context), expected, atol=1e-6, rtol=0)


def test_each_of_the_six_vectors_has_its_effect(block, inputs):
    tokens, modulation, context = inputs
    plain = block(tokens, modulation, context)
    for number in range(6):
        changed = modulation.clone()
        changed[:, number] += 1
        assert (block(tokens, changed, context) - plain).abs().max() > 1e-2, number


def test_open_gates_agree_with_the_formula(block, inputs):
    tokens, modulation, context = inputs
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (modulation + block.table)[:, :, None].unbind(1)

    def normed(x):
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-6)

    x = tokens + gate_a * block.attention(normed(tokens) * (1 + scale_a) + shift_a)
    x = x + block.cross_attention(block.norm_cross(x), context)
    x = x + gate_m * block.mlp(normed(x) * (1 + scale_m) + shift_m)
    torch.testing.assert_close(block(tokens, modulation, context), x)


def test_rows_are_modulated_apart(block, inputs):
    tokens, modulation, context = inputs
    changed = modulation.clone()
    changed[0] += 1
    torch.testing.assert_close(block(tokens, changed, context)[1], block(tokens, modulation, context)[1])


def test_plain_blocks_and_widths(inputs):
    tokens = inputs[0]
    block = Block(16, 2)
    out = block(tokens)
    assert out.shape == tokens.shape
    order = torch.randperm(5, generator=stream(0, "order"))
    torch.testing.assert_close(block(tokens[:, order]), out[:, order])
    assert Mlp(16, 8)(tokens).shape == (2, 5, 16)
    assert Mlp(16, 8, 3)(tokens).shape == (2, 5, 3)


def test_the_sum_over_blocks_is_bfloat16_in_imagination_and_float32_in_training():
    torch.manual_seed(0)
    block = ModulatedBlock(32, 2)
    tokens, modulation, context = torch.randn(3, 20, 32), torch.randn(3, 6, 32), torch.randn(3, 4, 32)
    exact = block(tokens, modulation, context)
    with torch.autocast("cpu", torch.bfloat16):
        training = block(tokens, modulation, context)
        with torch.no_grad():
            imagination = block(tokens, modulation, context)
    assert (training.dtype, imagination.dtype) == (torch.float32, torch.bfloat16)
    moved = (exact - tokens).std()
    assert (imagination - exact).std() < 0.03 * moved
    assert (training - exact).std() < 0.015 * moved
    with torch.no_grad():
        assert torch.equal(block(tokens, modulation, context), exact)
