"""Units under test: what the scripts that time world models make of their measurements."""

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


@pytest.fixture
def parts(script):
    return script("bench_parts")


# -- work ----------------------------------------------------------------------------------------------------------


def test_attention_is_counted_on_the_cpu_too(parts):
    q = torch.randn(2, 3, 16, 8)
    assert parts.count_gflop(lambda: F.scaled_dot_product_attention(q, q, q)) == 2 * 2 * (2 * 3 * 16 * 16 * 8) / 1e9


def test_the_largest_products_and_convolutions_of_a_call_are_found(parts):
    small, large = torch.randn(4, 8), torch.randn(8, 32)
    picture, weight, bias = torch.randn(1, 2, 6, 6), torch.randn(5, 2, 3, 3), torch.randn(32)

    def call():
        F.conv2d(picture, weight, padding=1)
        torch.addmm(bias, small, large)
        torch.bmm(torch.randn(3, 2, 2), torch.randn(3, 2, 2))

    found = parts.kernels_of(call, 2)
    assert [str(kernel) for kernel in found] == ["convolution 1x2x6x6 by 5x2x3x3", "product 4x8 by 8x32"]
    assert [round(1e9 * kernel.gflop) for kernel in found] == [2 * 5 * 36 * 2 * 9, 2 * 4 * 8 * 32]
    wide = [kernel.widened(7) for kernel in parts.kernels_of(call, 3)]
    assert [kernel.left for kernel in wide] == [(7, 2, 6, 6), (28, 8), (21, 2, 2)]
    assert [kernel.right for kernel in wide] == [(5, 2, 3, 3), (8, 32), (21, 2, 2)]
    for kernel in wide:
        call, work = kernel.call(torch.float32, torch.device("cpu")), kernel.gflop
        assert parts.count_gflop(call) == work > 0
        assert call().isfinite().all()


# -- rates ---------------------------------------------------------------------------------------------------------


def test_a_share_is_of_the_fastest_anchor_of_the_same_round(parts):
    assert parts.shares([10, 30, 20], [[20, 20, 20], [10, 40, 80]]) == [0.5, 0.75, 0.25]
    assert parts.shares([10, 30], [[20, 20, 20], [10, 40]]) == [0.5, 0.75]  # later rounds had not everything


def test_a_model_faster_than_square_products_is_measured_by_its_own_convolutions(script, parts):
    """Winograd's method needs fewer multiplications than are counted: 150 GFLOP/s beside the products' 100."""
    bench = script("bench_rollout")
    own = parts.Kernel("convolution", (1, 2, 6, 6), (5, 2, 3, 3), ((1, 1), (1, 1), (1, 1), False, (0, 0), 1))
    row = bench.Row("unet", "float32", 1, 4, 75.0, lambda: None, (own,), seconds=[0.5, 0.5], wall=[1, 1])
    anchors = bench.anchor_rows([row])
    assert len(anchors) == 2 * len(bench.SIDES) + 1
    for (name, _), anchor in anchors.items():
        anchor.gflop, anchor.seconds = 1.0, [0.01, 0.01] if "by 256x256" in name else [0.02, 0.02]
    anchors[str(own), "float32"].seconds = [0.005, 0.004]
    found = row.to_json(1, bench.anchors_of(row, anchors, 1))
    assert found["share_of_anchor"] == pytest.approx((150 / 200 + 150 / 250) / 2)
    assert (found["anchor"]["name"], found["anchor"]["gflops"]) == (str(own), pytest.approx(225))
    assert found["frames_per_s"]["median"] == 8
    other = bench.Row("flow", "float32", 1, 4, 75.0, lambda: None, seconds=[0.5, 0.5], wall=[1, 1])
    assert other.to_json(1, bench.anchors_of(other, anchors, 1))["share_of_anchor"] == pytest.approx(1.5)
