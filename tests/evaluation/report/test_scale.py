import numpy as np
import pytest

from worldrl.evaluation.report.scale import fitted, fraction_scale, spread, tick_text, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1)), (0, 100, (0, 20, 40, 60, 80, 100)), (-1, 1, (-1, -0.5, 0, 0.5, 1)),
     (3, 11, (4, 6, 8, 10)), (0, 0.0012, (0, 0.00025, 0.0005, 0.00075, 0.001))],
)  # fmt: skip
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_are_few_inside_and_even_for_any_axis():
    rng = np.random.default_rng(0)
    for _ in range(500):
        low = float(rng.normal() * 10 ** rng.uniform(-6, 6))
        high = low + float(10 ** rng.uniform(-6, 6))
        found = ticks(low, high)
        step = np.diff(found)
        assert 2 <= len(found) <= 6
        assert low - 1e-8 * step[0] <= found[0]
        assert found[-1] <= high + 1e-8 * step[0]
        assert np.allclose(step, step[0], rtol=1e-3)


@pytest.mark.parametrize("last", [1, 2, 3, 7, 11, 12, 39, 240])
def test_an_axis_that_counts_has_whole_ticks(last):
    scale = fitted([0, last], 0, 100, pad=False)
    assert all(float(tick).is_integer() for tick in scale.ticks)
    assert len(set(scale.ticks)) == len(scale.ticks) >= 2


def test_a_scale_maps_its_ends_and_is_linear():
    scale = fitted([0.3, 7.9], 200, 10)
    assert scale(scale.low) == 200
    assert scale(scale.high) == 10
    assert scale((scale.low + scale.high) / 2) == pytest.approx(105)
    assert scale.low <= 0.3
    assert scale.high >= 7.9


def test_constant_data_still_have_an_axis():
    for value in (0.0, 3.0, -2.0, 1e-7):
        scale = fitted([value, value], 0, 100)
        assert scale.low < value < scale.high


def test_a_rate_axis_is_always_zero_to_one():
    assert (fraction_scale(0, 1).low, fraction_scale(0, 1).high) == (0, 1)


@pytest.mark.parametrize(
    ("value", "marks", "as_percent", "text"),
    [(0.25, (0, 0.25), True, "25\u00a0%"), (1000, (0, 1000), False, "1,000"), (20000, (0, 20000), False, "20k"),
     (-0.5, (-0.5, 0), False, "\u22120.5"), (2e-5, (0, 2e-5), False, "2e\u22125"), (1e6, (0, 2e6), False, "1e6"), (0, (0, 5e-6), False, "0")],
)  # fmt: skip
def test_tick_texts(value, marks, as_percent, text):
    assert tick_text(value, marks, as_percent) == text


def test_labels_are_spread_without_leaving_their_order():
    placed = spread([50, 52, 51, 10], 15, 0, 100)
    assert sorted(np.diff(sorted(placed)).round(6))[0] >= 15
    assert np.argsort(placed).tolist() == np.argsort([50, 52, 51, 10]).tolist()
    assert placed[3] == 10


def test_labels_at_the_lower_edge_move_up():
    assert max(spread([99, 100, 100], 15, 0, 100)) <= 100
