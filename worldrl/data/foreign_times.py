"""Times of a foreign LeRobotDataset: when its rows were recorded, and where its episodes lie in a film.

A row's image is the film's frame at ``from_timestamp + timestamp``. Rows are one frame apart, because an action leads from
its row to the next. A film holds many episodes: nothing in it says whose a frame is, so its table must leave no doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError

OFF = 0.25
"""Largest distance of a film's frame from a row's time, in frames; farther is no frame of that row."""
STEP = 0.5
"""Largest difference of the distance between two rows from one frame, in frames: either may be off by :data:`OFF`."""
LEAVE_OUT = "leave the episode out of the dataset"
TABLE = "write from_timestamp and to_timestamp of where the episodes lie in the film, or download the whole dataset again"


def require_steps(times: NDArray[np.float64], fps: float, where: str) -> None:
    """Refuse rows that are not one frame apart.

    Args:
        times: of the rows (s).
        fps: frames per second.
        where: file and episode, for the message.

    Raises:
        ArtefactError: a time that is no number, a gap, a step back; with the row.
    """
    steps = np.diff(times) * fps
    wrong = np.flatnonzero(~(np.abs(steps - 1) <= STEP))  # NaN is wrong, too
    if not np.isfinite(times).all() or len(wrong):
        row = int(np.argmin(np.isfinite(times))) if not np.isfinite(times).all() else int(wrong[0]) + 1
        before = f"row {row - 1} at {times[row - 1]:.3f} s" if row else "the first"
        raise ArtefactError(
            f"{where}, field 'timestamp': row {row} is at {times[row]:.3f} s, {before}; rows must be 1/{fps:g} s apart, as "
            f"an action leads from its row to the next; {_mend(steps, fps)}"
        )


def _mend(steps: NDArray[np.float64], fps: float) -> str:
    every = round(float(steps[0])) if len(steps) and np.isfinite(steps[0]) else 0
    if every > 1 and (np.abs(steps - every) <= STEP).all():
        return f'if each action lasts {every} frames, write "fps": {fps / every:g} to meta/info.json; else {LEAVE_OUT}'
    return f"{LEAVE_OUT}, or part it there into two"


@dataclass(frozen=True)
class Part:
    """An episode in a film.

    Attributes:
        episode: its number.
        rows: how many.
        start_s: its ``from_timestamp`` (s).
        end_s: its ``to_timestamp`` (s).
        first_s: earliest time of a row after ``start_s`` (s).
        last_s: latest one (s).
    """

    episode: int
    rows: int
    start_s: float
    end_s: float
    first_s: float
    last_s: float


def require_parts(parts: Sequence[Part], film_end_s: float, fps: float, where: str) -> None:
    """Refuse a film in which an episode could be shown images of another.

    Args:
        parts: all episodes of the film.
        film_end_s: time of the film's last frame (s).
        fps: frames per second.
        where: film and feature, for the message.

    Raises:
        ArtefactError: parts overlap, are too short for their rows, or end where the film does not.
    """
    ordered, off = sorted(parts, key=lambda part: part.start_s), OFF / fps
    for part in ordered:
        _require_rows_inside(part, fps, where)
    for one, two in zip(ordered, ordered[1:], strict=False):
        if two.start_s < one.end_s - off:
            raise ArtefactError(
                f"{where}: episode {two.episode} begins at {two.start_s:.3f} s, before episode {one.episode} ends at "
                f"{one.end_s:.3f} s; {TABLE}"
            )
    last = ordered[-1]
    if not last.end_s - off - 1 / fps <= film_end_s < last.end_s - off:
        raise ArtefactError(
            f"{where}: the film's last frame is at {film_end_s:.3f} s, the last episode, {last.episode}, ends at "
            f"{last.end_s:.3f} s: its last frame should be 1/{fps:g} s before; {TABLE}"
        )


def _require_rows_inside(part: Part, fps: float, where: str) -> None:
    span = f"{where}: episode {part.episode} is said to lie from {part.start_s:.3f} to {part.end_s:.3f} s"
    if not (np.isfinite([part.start_s, part.end_s]).all() and part.start_s >= -OFF / fps):
        raise ArtefactError(f"{span}, which is no part of a film; {TABLE}")
    frames = (part.end_s - part.start_s) * fps
    if frames < part.rows - OFF:
        raise ArtefactError(f"{span}, which is {frames:.2f} frames for {part.rows} rows; {TABLE}")
    if not (part.first_s * fps >= -OFF and part.last_s * fps <= frames - 1 + OFF):
        raise ArtefactError(
            f"{span}; its rows' times lead from {part.start_s + part.first_s:.3f} to {part.start_s + part.last_s:.3f} s, where "
            f"frames of other episodes are; write times from 0 to {(frames - 1) / fps:.3f} s, or {TABLE}"
        )


def times_by_episode(episodes: NDArray[np.float64], times: NDArray[np.float64]) -> dict[int, tuple[float, float]]:
    """Return the earliest and the latest time of each episode's rows.

    Args:
        episodes: number of each row's episode.
        times: of each row (s); NaN is left out.
    """
    order = np.argsort(episodes, kind="stable")
    numbers, first = np.unique(episodes[order], return_index=True)
    least, most = np.fmin.reduceat(times[order], first), np.fmax.reduceat(times[order], first)
    return {int(n): (float(a), float(b)) for n, a, b in zip(numbers, least, most, strict=True)}
