"""Unit under test: ``worldrl.methods.offline.neubay.packed_sequences``."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.methods.offline.neubay.packed_sequences import COLUMNS, PackedSequenceBuffer, PackedSequences, segment


def laid_together(parts: list[PackedSequences]) -> PackedSequences:
    """Put tapes behind one another."""
    return PackedSequences(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))


def counted(steps: int, start: float = 0.0, *, terminated: bool = False, real: bool = True) -> PackedSequences:
    """A segment whose observation, action and reward at step t are start + t."""
    numbers = start + torch.arange(steps + 1.0)
    return segment(
        numbers[:, None], 10 * numbers[:steps, None], 100 * numbers[:steps], terminated=terminated, real=real
    )


def test_segment_pairs_each_arrival_with_what_led_to_it() -> None:
    packed = segment(
        torch.tensor([[1.0], [2.0], [3.0]]),
        torch.tensor([[0.1], [0.2]]),
        torch.tensor([7.0, 8.0]),
        terminated=True,
        real=torch.tensor([True, False]),
    )
    assert packed.action.flatten().tolist() == pytest.approx([0, 0.1, 0.2])
    assert packed.reward.tolist() == [0, 7, 8]
    assert packed.terminated.tolist() == [False, False, True]
    assert packed.reset.tolist() == [True, False, False]
    assert packed.real.tolist() == [True, True, False]


def test_truncation_ends_the_rows_and_nothing_else() -> None:
    assert not bool(counted(3).terminated.any())


def test_pairs_never_cross_a_border() -> None:
    packed = laid_together([counted(2), counted(3, 50.0)])
    assert packed.pairs.tolist() == [True, True, False, True, True, True]
    assert packed.steps == 5


def test_lengths_are_checked() -> None:
    with pytest.raises(SettingError, match="2 actions need 3 obs and 2 rewards, got 2 and 2"):
        segment(torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(2), terminated=False, real=True)


def test_oldest_segments_go_whole() -> None:
    buffer = PackedSequenceBuffer(10, 1, 1)
    for start in (0.0, 100.0, 200.0):
        buffer.add(counted(3, start))  # 4 rows each: the third does not fit beside the first
    assert (len(buffer), buffer.rows) == (2, 8)
    seen = buffer.sample(400, generator=stream(0, "seen")).obs
    assert seen.min() == 100
    assert seen.max() == 203


def test_ring_turns_over_many_times_without_mixing_segments() -> None:
    buffer = PackedSequenceBuffer(11, 1, 1)
    for number in range(50):
        buffer.add(counted(1 + number % 4, 1000.0 * number))
    packed = buffer.sample(300, generator=stream(0, "many"))
    follows = packed.obs[1:, 0] - packed.obs[:-1, 0]
    assert bool((follows[packed.pairs] == 1).all())
    assert bool((packed.obs[packed.reset, 0] % 1000 == 0).all())
    assert packed.obs.min() >= 1000 * 46


def test_sample_has_the_asked_length_and_cuts_ends_only() -> None:
    buffer = PackedSequenceBuffer(100, 1, 1)
    for start in (0.0, 100.0):
        buffer.add(counted(6, start))
    for rows in (2, 7, 9, 30):
        packed = buffer.sample(rows, generator=stream(rows, "cut"))
        assert len(packed) == rows
        assert bool(packed.reset[0])
        assert bool((packed.obs[packed.reset, 0] % 100 == 0).all())


def test_resume_draws_the_same() -> None:
    buffer, again = PackedSequenceBuffer(13, 1, 1), PackedSequenceBuffer(13, 1, 1)
    for number in range(9):
        buffer.add(counted(1 + number % 3, 10.0 * number, real=number % 2 == 0))
    again.load_state_dict(buffer.state_dict())
    for made in (buffer, again):
        made.add(counted(2, 500.0, terminated=True))
    one, two = (made.sample(40, generator=stream(4, "draw")) for made in (buffer, again))
    for name in COLUMNS:
        assert torch.equal(getattr(one, name), getattr(two, name))


def test_buffer_refuses_what_it_cannot_hold() -> None:
    buffer = PackedSequenceBuffer(4, 1, 1)
    with pytest.raises(SettingError, match="5 rows does not fit into capacity=4"):
        buffer.add(counted(4))
    with pytest.raises(SettingError, match="one segment"):
        buffer.add(laid_together([counted(1), counted(1)]))
    with pytest.raises(SettingError, match="nothing to sample"):
        buffer.sample(3, generator=stream(0, "none"))
    with pytest.raises(SettingError, match="capacity"):
        PackedSequenceBuffer(1, 1, 1)
