import pytest
import torch
import torch.nn.functional as F

from worldrl.core.rng import initial_weights, stream
from worldrl.nn.attention import Attention, HeadNorm


@pytest.fixture
def attention():
    with initial_weights(0, "attention"):
        return Attention(16, 4)


def tokens(*shape, name="tokens"):
    return torch.randn(*shape, generator=stream(0, name))


def test_head_norm_has_unit_size_and_keeps_the_dtype():
    norm = HeadNorm(8)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = norm(10 * tokens(2, 3, 8).to(dtype))
        assert out.dtype == dtype
        size = out.float().square().mean(dim=-1).sqrt()
        torch.testing.assert_close(size, torch.ones(2, 3), atol=1e-2, rtol=0)


def test_attention_agrees_with_the_textbook(attention):
    x, context = tokens(2, 5, 16), tokens(2, 7, 16, name="context")
    key, value = attention.to_key_value(context).chunk(2, dim=-1)
    heads = [t.reshape(2, -1, 4, 4).transpose(1, 2) for t in (attention.to_query(x), key, value)]
    query, key = (t * torch.rsqrt(t.square().mean(dim=-1, keepdim=True) + 1e-6) for t in heads[:2])
    mixed = torch.softmax(query @ key.transpose(-1, -2) / 2, dim=-1) @ heads[2]
    expected = attention.out(mixed.transpose(1, 2).reshape(2, 5, 16))
    torch.testing.assert_close(attention(x, context), expected)


@pytest.mark.parametrize("keys", [5, 20])  # few with the queries last, many with the keys last
def test_both_ways_of_computing_it_agree_with_gradient(attention, monkeypatch, keys):
    """Written out on the CPU, fused elsewhere."""
    import worldrl.nn.attention as module

    fused = F.scaled_dot_product_attention
    results = []
    for attend in (module.attend, fused):
        monkeypatch.setattr(module, "attend", attend)
        x = tokens(2, keys, 16).requires_grad_()
        out = attention(x)
        results.append((out.detach(), torch.autograd.grad(out.square().sum(), x)[0]))
    torch.testing.assert_close(results[0], results[1])


def test_order_of_the_context_does_not_matter_and_rows_are_apart(attention):
    x, context = tokens(3, 5, 16), tokens(3, 7, 16, name="context")
    plain = attention(x, context)
    torch.testing.assert_close(attention(x, context.flip(1)), plain)
    other = context.clone()
    other[0] += 1
    changed = attention(x, other)
    assert not torch.allclose(changed[0], plain[0], atol=1e-2)
    torch.testing.assert_close(changed[1:], plain[1:])


def test_a_narrow_context_and_half_precision(attention):
    narrow = Attention(16, 4, context_width=6)
    assert narrow(tokens(2, 5, 16), tokens(2, 3, 6, name="narrow")).shape == (2, 5, 16)
    x = tokens(2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = attention(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), attention(x), atol=3e-2, rtol=3e-2)
