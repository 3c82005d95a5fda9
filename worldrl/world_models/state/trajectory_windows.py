"""Trajectories as one tensor: windows of a dataset, and the encoding of their numbers.

A window is ``L`` consecutive steps of one episode. It never crosses a reset and contains no step that a time limit
cut off, because the data lacks what would have followed. Actions are stretched by arctanh, so that a generated one,
squeezed back, is in [-1, 1] again.

Shapes legend: ``N`` rows of the dataset, ``n`` windows, ``L`` steps, ``S`` observation, ``A`` action, ``W = S + A +
2`` numbers per step.
"""

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.transitions import Transitions

LARGEST_ACTION = 0.999  # actions are clipped here before arctanh, which is infinite at 1


def window_starts(rows: Transitions, episode: Tensor, length: int, stride: int) -> Tensor:
    """Where windows begin, int64 ``[n]`` ascending: every ``stride``-th possible place, and two special ones.

    These are the beginnings of episodes and the last windows before terminals. Raises SettingError: no episode is
    long enough.
    """
    count = len(rows) - length + 1
    if count < 1:
        raise SettingError(f"trajectory.length={length}: the dataset has only {len(rows)} rows")
    cut = torch.cat([torch.zeros(1, dtype=torch.int64), rows.truncated.long().cumsum(0)])
    whole = (episode[:count] == episode[length - 1 :]) & (cut[length:] == cut[:count])
    places = whole.nonzero()[:, 0]
    if not len(places):
        longest = int(episode.unique(return_counts=True)[1].max())
        raise SettingError(
            f"trajectory.length={length}: no episode holds a window that long without its time limit (the longest has "
            f"{longest} rows); shorten the windows"
        )
    first = torch.ones(count, dtype=torch.bool)
    first[1:] = episode[1:count] != episode[: count - 1]
    special = whole & (first | rows.terminated[length - 1 :])
    return torch.cat([places[::stride], special.nonzero()[:, 0]]).unique()


def stack_windows(rows: Transitions, starts: Tensor, length: int) -> Tensor:
    """Cut windows: float32 ``[n, L, W]`` of observation, arctanh action, reward, termination."""
    flag = rows.terminated.float()[:, None]
    stretched = rows.action.clamp(-LARGEST_ACTION, LARGEST_ACTION).atanh()
    numbers = torch.cat([rows.obs, stretched, rows.reward[:, None], flag], dim=1)
    return numbers[starts[:, None] + torch.arange(length)]


def unstack_windows(numbers: Tensor, obs_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Invert :func:`stack_windows`: observation ``[n, L, S]``, action in (-1, 1), reward ``[n, L]``, termination."""
    obs, stretched, rest = numbers.tensor_split([obs_size, numbers.shape[-1] - 2], dim=-1)
    return obs, stretched.tanh(), rest[..., 0], rest[..., 1] > 0.5


def window_transitions(numbers: Tensor, obs_size: int) -> Transitions:
    """Convert windows ``[n, L, W]`` to rows, each trajectory up to its first terminated step.

    The last step has no successor in its window, so it becomes a row only where it terminated, with its own
    observation as successor. The published code always drops it, so its trajectories never end.
    """
    obs, action, reward, terminated = unstack_windows(numbers, obs_size)
    next_obs = torch.cat([obs[:, 1:], obs[:, -1:]], dim=1)
    ended_before = terminated.long().cumsum(1) - terminated.long() > 0
    kept = ~ended_before
    kept[:, -1] &= terminated[:, -1]
    follower = torch.cat([kept[:, 1:], torch.zeros_like(kept[:, :1])], dim=1)
    truncated = kept & ~follower & ~terminated
    columns = (obs, action, reward, next_obs, terminated, truncated)
    return Transitions(*(column[kept] for column in columns))
