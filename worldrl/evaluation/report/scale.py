"""Axes: sensible ticks, a linear map, labels that do not overlap. Pure arithmetic, no drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0)


@dataclass(frozen=True)
class Scale:
    """A linear map from data in [low, high] to pixels, with its ticks."""

    low: float
    high: float
    start: float  # pixel of ``low``
    end: float  # pixel of ``high``; smaller than ``start`` for an upward axis
    ticks: tuple[float, ...]  # data values within [low, high]

    def __call__(self, value: float) -> float:
        """Return the pixel of a data value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def tick_step(span: float, target: int, whole: bool = False) -> float:
    """Return the smallest of 1, 2, 2.5, 5 × 10^k that cuts ``span`` into at most ``target`` parts; ``whole`` where it counts."""
    raw = span / target
    magnitude = 10.0 ** math.floor(math.log10(raw))
    steps = (step * magnitude for step in (*STEPS, 10.0))
    fitting = next(step for step in steps if step >= raw * (1 - 1e-9) and not (whole and step % 1 and step > 1))
    return max(1.0, fitting) if whole else fitting


def ticks(low: float, high: float, target: int = 5, whole: bool = False) -> tuple[float, ...]:
    """Return the round numbers within [low, high], about ``target`` of them, in order."""
    step = tick_step(high - low, target, whole)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def fitted(values: Sequence[float], start: float, end: float, target: int = 5, pad: bool = True) -> Scale:
    """Fit an axis to finite data, at least one value; constant data get room on both sides.

    With ``pad`` the axis is rounded outwards to whole ticks, and starts at 0 where the data lie near it. Without it the
    axis ends with the data, and counts in whole numbers where they do.
    """
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        low, high = low - room, high + room
    elif pad and 0 < low < 0.4 * high:
        low = 0.0
    if pad:
        step = tick_step(high - low, target)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    whole = not pad and all(float(value).is_integer() for value in values)
    return Scale(low, high, start, end, ticks(low, high, target, whole))


def fraction_scale(start: float, end: float) -> Scale:
    """Return the axis of a rate: 0 to 1 in quarters."""
    return Scale(0.0, 1.0, start, end, (0.0, 0.25, 0.5, 0.75, 1.0))


def tick_text(value: float, scale_ticks: Sequence[float], as_percent: bool = False) -> str:
    """Write a tick with as many decimals as its axis needs; thousands as ``10k``."""
    if as_percent:
        return f"{100 * value:g}\u00a0%"
    largest = max(abs(tick) for tick in scale_ticks)
    if largest >= 1e6 or 0 < largest < 1e-3:
        return f"{value:.3g}".replace("-", "\u2212").replace("e+0", "e").replace("e\u22120", "e\u2212")
    if largest >= 1e4:
        return f"{value / 1000:g}k".replace("-", "\u2212") if value else "0"
    return f"{value:,.12g}".replace("-", "\u2212")


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels from their wanted pixels until they are ``gap`` apart, in their order, inside [low, high] where they fit."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed = [0.0] * len(positions)
    previous = low - gap
    for index in order:
        placed[index] = previous = max(positions[index], previous + gap)
    limit = high
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed
