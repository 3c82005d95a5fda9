"""The buffer of imagined transitions: everything turns over, and a restored one draws the same rows.

Unit under test: ``TransitionBuffer``.
"""

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.buffer import TransitionBuffer


def numbered(first: int, last: int) -> Transitions:
    number = torch.arange(first, last, dtype=torch.float32)
    odd = torch.arange(first, last) % 2 == 1
    return Transitions(number[:, None], -number[:, None], number, number[:, None] + 1, odd, ~odd)


def held(buffer: TransitionBuffer) -> list[float]:
    rows = buffer.rows()
    assert torch.equal(rows.obs[:, 0], rows.reward)  # columns stay together
    assert torch.equal(rows.terminated, rows.reward % 2 == 1)
    return rows.reward.tolist()


def test_the_oldest_rows_leave_first_and_all_of_them_do() -> None:
    buffer = TransitionBuffer(10)
    for first in range(0, 40, 4):  # generations of four do not divide ten
        buffer.add(numbered(first, first + 4))
        assert held(buffer) == list(range(max(0, first + 4 - 10), first + 4))
    assert len(buffer) == 10


def test_more_rows_than_it_holds() -> None:
    buffer = TransitionBuffer(5)
    buffer.add(numbered(0, 3))
    buffer.add(numbered(10, 22))
    assert held(buffer) == [17, 18, 19, 20, 21]


def test_samples_come_from_the_rows_it_has() -> None:
    buffer = TransitionBuffer(100)
    buffer.add(numbered(7, 12))
    drawn = buffer.sample(400, generator=stream(0, "draw"))
    assert set(drawn.reward.tolist()) == {7, 8, 9, 10, 11}
    assert torch.equal(drawn.next_obs[:, 0], drawn.reward + 1)


@pytest.mark.parametrize("last", [0, 6, 23])
def test_a_restored_buffer_continues_as_the_old_one(last: int) -> None:
    one, two = TransitionBuffer(10), TransitionBuffer(10)
    for first in range(0, last, 3):
        one.add(numbered(first, first + 3))
    two.add(numbered(50, 55))
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        buffer.add(numbered(100, 104))
    assert held(one) == held(two)
    draws = [buffer.sample(30, generator=stream(1, "draw")).reward for buffer in (one, two)]
    assert torch.equal(*draws)


def test_mistakes_are_named() -> None:
    buffer = TransitionBuffer(10)
    with pytest.raises(SettingError, match="empty"):
        buffer.sample(1, generator=stream(0, "draw"))
    buffer.add(numbered(0, 2))
    wide = numbered(0, 2)
    with pytest.raises(SettingError, match="action has"):
        buffer.add(Transitions(wide.obs, wide.action.expand(2, 3), wide.reward, wide.next_obs, *[wide.terminated] * 2))
    with pytest.raises(ArtefactError, match="holds up to 10"):
        TransitionBuffer(11).load_state_dict(buffer.state_dict())
    with pytest.raises(SettingError, match="capacity"):
        TransitionBuffer(0)
