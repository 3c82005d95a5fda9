"""Given actions played open loop from known initial states, in the embedded suite or in an external one.

Nothing is rendered while actions are played; the first frame is rendered on request. The result is the measured state
at every frame, for comparison with a recording.

Shapes legend: ``T`` steps, ``V`` cameras, ``Y X`` pixels; ``A`` numbers of an action, ``S`` of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.rollout.real.episodes import Slots
from worldrl.rollout.real.recording import camera_frames
from worldrl.rollout.real.specs import EpisodeSpec

Actions = NDArray[np.float32]


@dataclass(frozen=True)
class Replay:
    """Result of actions: measured state float32 ``[T+1, S]``, and the first frame (1..T) of success, or None."""

    state: NDArray[np.float32]
    first_success: int | None

    @property
    def success(self) -> bool:
        """Whether the task was fulfilled at some frame after the first."""
        return self.first_success is not None


@dataclass(frozen=True)
class Opening:
    """The first frame of an episode: state float32 ``[S]``, frames uint8 ``[V, Y, X, 3]``."""

    state: NDArray[np.float32]
    frames: NDArray[np.uint8]


def replays(
    slots: Slots, specs: Sequence[EpisodeSpec], actions: Sequence[Actions], *, to_success: bool = False
) -> list[Replay]:
    """Play ``[T, A]`` actions of each episode, all or ``to_success``, as many episodes at once as there are slots."""
    found: list[Replay] = []
    for first in range(0, len(specs), slots.slots):
        batch = slice(first, first + slots.slots)
        found += _batch(slots, specs[batch], actions[batch], to_success)
    return found


def _batch(slots: Slots, specs: Sequence[EpisodeSpec], actions: Sequence[Actions], to_success: bool) -> list[Replay]:
    states = {slot: [row["state"]] for slot, row in slots.reset(dict(enumerate(specs)), render=False).items()}
    hits: dict[int, list[bool]] = {slot: [] for slot in states}
    for step in range(max(map(len, actions))):
        running = [slot for slot in states if step < len(actions[slot]) and not (to_success and True in hits[slot])]
        live = {slot: actions[slot][step : step + 1] for slot in running}
        for slot, (row,) in (slots.steps(live, render=()) if live else {}).items():
            states[slot].append(row["state"])
            hits[slot].append(bool(row["success"]))
    return [Replay(np.stack(states[slot]).astype(np.float32), _first(hits[slot])) for slot in sorted(states)]


def openings(slots: Slots, specs: Sequence[EpisodeSpec]) -> list[Opening]:
    """Show the first frame of each episode."""
    rows = (slots.reset({0: spec}, render=True)[0] for spec in specs)
    return [Opening(np.array(row["state"], np.float32), camera_frames(row, slots.cameras)) for row in rows]


def _first(hits: Sequence[bool]) -> int | None:
    return hits.index(True) + 1 if True in hits else None
