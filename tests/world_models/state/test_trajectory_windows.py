"""Windows of a dataset and what becomes of them. Unit under test: ``trajectory_windows``."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.transitions import Transitions
from worldrl.world_models.state.trajectory_windows import (
    stack_windows,
    unstack_windows,
    window_starts,
    window_transitions,
)


def dataset(*lengths_and_ends: tuple[int, str]) -> tuple[Transitions, torch.Tensor]:
    """Episodes of given lengths whose observation counts the rows; each ends ``"terminated"`` or ``"truncated"``."""
    total = sum(length for length, _ in lengths_and_ends)
    number = torch.arange(total, dtype=torch.float32)
    obs = torch.stack([number, -number], dim=1)
    terminated, truncated = torch.zeros(2, total, dtype=torch.bool)
    episode, at = torch.zeros(total, dtype=torch.int64), 0
    for index, (length, end) in enumerate(lengths_and_ends):
        episode[at : at + length] = index
        at += length
        (terminated if end == "terminated" else truncated)[at - 1] = True
    action = torch.tanh(number[:, None] / total - 0.5)
    return Transitions(obs, action, 10 * number, obs + torch.tensor([1.0, -1.0]), terminated, truncated), episode


def test_windows_stay_in_their_episode_and_before_its_time_limit() -> None:
    rows, episode = dataset((7, "terminated"), (3, "terminated"), (6, "truncated"))
    starts = window_starts(rows, episode, 4, 1)
    assert starts.tolist() == [0, 1, 2, 3, 10, 11]  # row 15 is cut off: no window holds it
    for start in starts.tolist():
        assert len(set(episode[start : start + 4].tolist())) == 1
        assert not rows.truncated[start : start + 4].any()


def test_a_stride_keeps_beginnings_and_terminals() -> None:
    rows, episode = dataset((9, "terminated"), (8, "truncated"))
    assert window_starts(rows, episode, 4, 3).tolist() == [0, 3, 5, 9, 12]  # 5 ends with the terminal
    every = window_starts(rows, episode, 4, 1)
    assert set(window_starts(rows, episode, 4, 3).tolist()) <= set(every.tolist())


def test_no_window_is_an_error_that_names_the_longest_episode() -> None:
    rows, episode = dataset((4, "terminated"), (5, "truncated"))
    with pytest.raises(SettingError, match="longest has 5 rows"):
        window_starts(rows, episode, 5, 1)
    with pytest.raises(SettingError, match="only 9 rows"):
        window_starts(rows, episode, 50, 1)


def test_windows_and_back() -> None:
    rows, episode = dataset((9, "terminated"), (8, "truncated"))
    starts = window_starts(rows, episode, 4, 1)
    numbers = stack_windows(rows, starts, 4)
    assert numbers.shape == (len(starts), 4, 2 + 1 + 2)
    obs, action, reward, terminated = unstack_windows(numbers, 2)
    place = starts[:, None] + torch.arange(4)
    assert torch.equal(obs, rows.obs[place])
    torch.testing.assert_close(action, rows.action[place])
    assert torch.equal(reward, rows.reward[place])
    assert torch.equal(terminated, rows.terminated[place])


def test_extreme_actions_stay_finite() -> None:
    rows, episode = dataset((5, "terminated"))
    wild = Transitions(rows.obs, torch.tensor([[1.0], [-1.0], [0.0], [1.0], [-1.0]]), *list(vars(rows).values())[2:])
    numbers = stack_windows(wild, window_starts(wild, episode, 5, 1), 5)
    assert numbers.isfinite().all()
    assert unstack_windows(numbers, 2)[1].abs().max().item() == pytest.approx(0.999)


def test_transitions_are_the_recorded_ones_and_keep_the_terminal() -> None:
    rows, _ = dataset((9, "terminated"), (8, "truncated"))
    starts = torch.tensor([5, 9])  # the first ends with the terminal, the second continues
    made = window_transitions(stack_windows(rows, starts, 4), 2)
    assert made.obs[:, 0].tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert made.next_obs[:3, 0].tolist() == [6, 7, 8]
    assert made.next_obs[4:, 0].tolist() == [10, 11, 12]
    assert made.terminated.tolist() == [False] * 3 + [True] + [False] * 3
    assert made.truncated.tolist() == [False] * 6 + [True]
    torch.testing.assert_close(made.action, rows.action[[5, 6, 7, 8, 9, 10, 11]])
    assert made.reward.tolist() == [50, 60, 70, 80, 90, 100, 110]


def test_a_generated_end_in_the_middle_cuts_the_trajectory() -> None:
    numbers = torch.zeros(2, 5, 5)
    numbers[:, :, 0] = torch.arange(5.0)
    numbers[0, 2, -1] = 0.9
    numbers[0, 4, -1] = 1.0
    made = window_transitions(numbers, 2)
    assert made.obs[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert made.terminated.tolist() == [False, False, True, False, False, False, False]
    assert made.truncated.tolist() == [False] * 6 + [True]
