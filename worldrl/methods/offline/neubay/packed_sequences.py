"""Packed sequences for recurrent agents: histories of real episodes and the steps imagined after them, back to back.

A segment of ``n`` steps is ``n + 1`` *arrivals*. Row ``t`` holds an observation, the action that led to it, and that
action's reward. The first row of a segment has none (``reset``)::

    row             0        1        2      |   3 (reset)   4
    obs             s0       s1       s2     |   s0'         s1'
    action          0        a0       a1     |   0           a0'
    reward          0        r0       r1     |   0           r0'
    terminated      -        no       yes    |   -           no

The input of a recurrent network at row ``t`` is the row itself. The transition (s_t, a_t, r_t, s_{t+1}) is the pair of
rows (t, t+1), for every t whose successor is no reset. A time limit or a truncated rollout ends the rows: the last
arrival is stored, and the target still bootstraps from it.

Shapes legend: ``T`` rows, ``S`` observation, ``A`` action.
"""

from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.transitions import Columns


@dataclass(frozen=True)
class PackedSequences(Columns):
    """Rows of arrivals; see the module's table."""

    obs: Tensor  # float32 ``[T, S]``.
    action: Tensor  # float32 ``[T, A]`` that led to this row; zeros at a reset.
    reward: Tensor  # float32 ``[T]`` of that action; zero at a reset.
    terminated: Tensor  # bool ``[T]``, that action ended the task.
    reset: Tensor  # bool ``[T]``, the first row of a segment.
    real: Tensor  # bool ``[T]``, that action was recorded, not imagined; at a reset as its own observation.

    def __len__(self) -> int:
        return int(self.obs.shape[0])

    @property
    def pairs(self) -> Tensor:
        """Bool ``[T - 1]``: whether rows (t, t+1) are a transition."""
        return ~self.reset[1:]

    @property
    def steps(self) -> int:
        """Number of transitions."""
        return int(self.pairs.sum()) if len(self) else 0


COLUMNS = tuple(field.name for field in fields(PackedSequences))


def segment(obs: Tensor, action: Tensor, reward: Tensor, *, terminated: bool, real: Tensor | bool) -> PackedSequences:
    """Pack ``n`` steps with ``obs [n + 1, S]``; ``real`` is ``[n]`` or one for all. SettingError: other lengths."""
    steps = len(action)
    if len(obs) != steps + 1 or len(reward) != steps:
        raise SettingError(
            f"segment: {steps} actions need {steps + 1} obs and {steps} rewards, got {len(obs)} and {len(reward)}"
        )
    kind = torch.full((steps,), real) if isinstance(real, bool) else real
    first = torch.zeros(1, dtype=torch.bool)
    ends = torch.zeros(steps + 1, dtype=torch.bool)
    ends[-1] = terminated and steps > 0
    start = kind[:1] if steps else torch.ones(1, dtype=torch.bool)
    return PackedSequences(
        obs=obs.float(),
        action=torch.cat([action.new_zeros(1, action.shape[1]), action]).float(),
        reward=torch.cat([reward.new_zeros(1), reward]).float(),
        terminated=ends,
        reset=torch.cat([~first, first.expand(steps)]),
        real=torch.cat([start, kind]),
    )


class PackedSequenceBuffer:
    """First-in-first-out segments in a ring of at least 2 rows; whole segments make room for a new one."""

    def __init__(self, capacity: int, obs_size: int, action_size: int) -> None:
        if capacity < 2:
            raise SettingError(f"tape capacity must be at least 2 rows, got {capacity}")
        self.capacity = capacity
        self._columns = {
            "obs": torch.zeros(capacity, obs_size),
            "action": torch.zeros(capacity, action_size),
            "reward": torch.zeros(capacity),
            **{name: torch.zeros(capacity, dtype=torch.bool) for name in ("terminated", "reset", "real")},
        }
        self._segments: deque[tuple[int, int]] = deque()  # (first row counted from the very first, length)
        self._written = 0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def rows(self) -> int:
        """Rows held."""
        return self._written - self._segments[0][0] if self._segments else 0

    def add(self, packed: PackedSequences) -> None:
        """Append one segment and drop the oldest ones in its place; SettingError: longer than the ring, or not one segment."""
        length = len(packed)
        if length > self.capacity:
            raise SettingError(f"tape: a segment of {length} rows does not fit into capacity={self.capacity}")
        if not length or not bool(packed.reset[0]) or bool(packed.reset[1:].any()):
            raise SettingError("tape: add takes one segment, which begins with its only reset")
        while self._segments and self._written + length - self._segments[0][0] > self.capacity:
            self._segments.popleft()
        index = (torch.arange(length) + self._written) % self.capacity
        for name, column in self._columns.items():
            column[index] = getattr(packed, name)
        self._segments.append((self._written, length))
        self._written += length

    def sample(self, rows: int, *, generator: torch.Generator) -> PackedSequences:
        """Draw segments, with replacement, until they have exactly ``rows`` rows (2 or more); SettingError if empty.

        The last segment is cut at its end, never at its start, so every memory begins where its episode did.
        """
        if not self._segments:
            raise SettingError("tape: nothing to sample from; add a segment first")
        parts, missing = [], rows
        while missing > 0:
            pick = int(torch.randint(len(self._segments), (), generator=generator))
            first, length = self._segments[pick]
            taken = min(length, missing)
            parts.append(torch.arange(first, first + taken) % self.capacity)
            missing -= taken
        index = torch.cat(parts)
        return PackedSequences(*(self._columns[name][index] for name in COLUMNS))

    def state_dict(self) -> dict[str, Any]:
        """The stored segments, as tensors and numbers."""
        first = self._segments[0][0] if self._segments else self._written
        index = torch.arange(first, self._written) % self.capacity
        lengths = torch.tensor([length for _, length in self._segments], dtype=torch.int64)
        return {
            "first": first,
            "lengths": lengths,
            "columns": {name: column[index] for name, column in self._columns.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`; later draws are the same. SettingError: more rows than the capacity."""
        lengths = [int(length) for length in state["lengths"]]
        if sum(lengths) > self.capacity:
            raise SettingError(f"tape: {sum(lengths)} saved rows do not fit into capacity={self.capacity}")
        self._segments.clear()
        self._written = int(state["first"])
        for length in lengths:
            self._segments.append((self._written, length))
            self._written += length
        index = torch.arange(int(state["first"]), self._written) % self.capacity
        for name, column in self._columns.items():
            column[index] = state["columns"][name]
