"""Times of an external LeRobotDataset: when its rows were recorded, and where its episodes lie in a film.

A row's image is the film's frame at ``from_timestamp + timestamp``. Rows are one frame apart, as an action leads from
one to the next. Only the episode table separates the episodes of a film.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError

OFF = 0.25
"""Largest distance of a film's frame from its row's time, in frames of the film."""
STEP, DRIFT = 0.4, 0.01
"""Largest deviation of two rows' distance from one frame, in frames, and of the mean distance, as a share."""
TABLE = "write from_timestamp and to_timestamp of where the episodes lie in the film"


def require_steps(times: NDArray[np.float64], fps: float, where: str) -> None:
    """ArtefactError, with the row, for times (s) that are not one frame apart."""
    bad, steps = ~np.isfinite(times), np.zeros(0)
    if not bad.any():
        steps = np.diff(times) * fps
        drift = np.abs(np.cumsum(steps - 1)) > STEP + DRIFT * np.arange(1, len(times))
        bad[1:] = (np.abs(steps - 1) > STEP) | drift
    if bad.any():
        row = int(np.argmax(bad))
        before = f", row {row - 1} at {times[row - 1]:.3f} s" if row else ""
        raise ArtefactError(
            f"{where}, field 'timestamp': row {row} is at {times[row]:.3f} s{before}; rows must be 1/{fps:g} s apart, as an "
            f"action leads from its row to the next{_other_rate(steps / fps, fps) or _mend(steps, row, fps)}"
        )


def _other_rate(steps_s: NDArray[np.float64], fps: float) -> str:
    """Say which rate evenly spaced rows have, where it is a whole number."""
    rate = 1 / mean if len(steps_s) and (mean := float(np.mean(steps_s))) > 0 else 0
    even = rate > 0 and (np.abs(steps_s * rate - 1) <= STEP).all() and abs(rate - round(rate)) <= DRIFT * rate
    if not even or round(rate) == fps:
        return ""
    return f'; if each action lasts 1/{round(rate)} s, write "fps": {round(rate)} to meta/info.json'


def _mend(steps: NDArray[np.float64], row: int, fps: float) -> str:
    """Say what repairs a gap between rows that are otherwise one frame apart; or a clock that is none."""
    others = np.delete(steps, row - 1) if row and len(steps) else steps
    if len(others) and steps[row - 1] > 1 and (np.abs(others - 1) <= STEP).all():
        return f"; rows are missing there: make two episodes of it, the second from row {row} on"
    return f"; if the rows were recorded evenly, write row / {fps:g} as their timestamp"


@dataclass(frozen=True)
class Film:
    """What a video file is."""

    last_s: float  # time of its last frame (s)
    rate: float  # its frames per second; rows may be fewer


@dataclass(frozen=True)
class Part:
    """An episode in a film."""

    episode: int  # its number
    rows: int  # how many; 0 where the table has no number
    start_s: float  # its `from_timestamp` (s)
    end_s: float  # its `to_timestamp` (s)
    first_s: float  # earliest time of a row after `start_s` (s); NaN of an episode that is not read
    last_s: float  # latest one (s)


def require_parts(parts: Sequence[Part], film: Film, fps: float, where: str, *, longer: bool) -> None:
    """ArtefactError for a film in which an episode could be shown images of another.

    Parts overlap, are too short for their rows, or end where the film does not (unless it may be ``longer``).
    """
    ordered, off = sorted(parts, key=lambda part: part.start_s), OFF / film.rate
    for part in ordered:
        _require_length(part, film, fps, where)
    for one, two in pairwise(ordered):
        if two.start_s < one.end_s - off:
            raise ArtefactError(
                f"{where}: episode {two.episode} begins at {two.start_s:.3f} s, before episode {one.episode} ends at "
                f"{one.end_s:.3f} s; {TABLE}"
            )
    last, ends = ordered[-1], film.last_s + 1 / film.rate
    if ends < last.end_s - 2 * off or (ends > last.end_s + 2 * off and not longer):
        raise ArtefactError(
            f"{where}: the film ends at {ends:.3f} s, its last episode, {last.episode}, at {last.end_s:.3f} s; {TABLE}"
        )


def _require_length(part: Part, film: Film, fps: float, where: str) -> None:
    last_s = part.end_s - part.start_s - 1 / film.rate
    if last_s < (part.rows - 1) / fps - OFF / film.rate:
        raise ArtefactError(
            f"{_span(part, where)}, which is too short for {part.rows} rows at {fps:g} a second; {TABLE}"
        )


def _span(part: Part, where: str) -> str:
    return f"{where}: episode {part.episode} is said to lie from {part.start_s:.3f} to {part.end_s:.3f} s"


def times_outside(part: Part, film: Film, where: str) -> str:
    """Return what is wrong with the times of an episode's rows in its film; empty where nothing is."""
    off, last_s = OFF / film.rate, part.end_s - part.start_s - 1 / film.rate
    if not (part.first_s < -off or part.last_s > last_s + off):
        return ""
    return (
        f"{_span(part, where)}; its rows are at {part.start_s + part.first_s:.3f} to {part.start_s + part.last_s:.3f} s, where "
        f"images of other episodes are; write timestamps from 0 to {last_s:.3f} s"
    )


def times_by_episode(episodes: NDArray[np.float64], times: NDArray[np.float64]) -> dict[int, tuple[float, float]]:
    """Return the earliest and the latest time (s) of each episode's rows; NaN is left out."""
    order = np.argsort(episodes, kind="stable")
    numbers, first = np.unique(episodes[order], return_index=True)
    least, most = np.fmin.reduceat(times[order], first), np.fmax.reduceat(times[order], first)
    return {int(n): (float(a), float(b)) for n, a, b in zip(numbers, least, most, strict=True)}
