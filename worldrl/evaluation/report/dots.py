"""Dot charts as inline SVG: things side by side that no line may join, one row each, with an interval bar per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worldrl.evaluation.report.charts import (
    BOTTOM,
    CHARACTER,
    TOP,
    WIDTH,
    describe,
    finite_series,
    heights,
    label,
    legend,
    nothing_measured,
    series_classes,
)
from worldrl.evaluation.report.markup import Html, element, join
from worldrl.evaluation.report.model import Curve, Point
from worldrl.evaluation.report.scale import Scale, fitted, fraction_scale, tick_text
from worldrl.evaluation.report.words import number, percent

ROW, APART = 24.0, 9.0
"""Pixels of a place, and between the dots of two series in it."""


def dot_chart(curve: Curve) -> Html:
    """Draw one chart of places.

    Args:
        curve: the data, with ``places``; series without a finite point are left out.

    Returns:
        An ``<svg>``, with a legend above it where there are several series, or the sentence that nothing was measured.
    """
    series = finite_series(curve)
    if not series:
        return nothing_measured(curve)
    left = 12.0 + CHARACTER * max(len(place) for place in curve.places)
    height = ROW + APART * (len(series) - 1)
    bottom = TOP + height * len(curve.places)
    x, classes = _across(curve, series, left), series_classes(curve)
    marks = [
        _marks(curve, name, points, classes[name], x, [TOP + (at - 0.5) * height + shift for at, _ in points])
        for (name, points), shift in zip(series.items(), _shifts(len(series)), strict=True)
    ]
    svg = element(
        "svg",
        _frame(curve, x, height, bottom),
        *marks,
        viewBox=f"0 0 {WIDTH:g} {bottom + BOTTOM:g}",
        class_="chart",
        role="img",
        aria_label=describe(curve),
    )
    return svg if len(series) == 1 else join([legend(series, classes, curve), svg])


def _across(curve: Curve, series: Mapping[str, list[Point]], left: float) -> Scale:
    return fraction_scale(left, WIDTH - 20) if curve.percent else fitted(heights(curve, series), left, WIDTH - 20)


def _shifts(count: int) -> list[float]:
    return [APART * (index - (count - 1) / 2) for index in range(count)]


def _frame(curve: Curve, x: Scale, height: float, bottom: float) -> Html:
    grid = [element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=bottom, class_="grid") for tick in x.ticks]
    ticks = [
        element("text", tick_text(tick, x.ticks, curve.percent), x=x(tick), y=bottom + 17, class_="tick middle")
        for tick in x.ticks
    ]
    names = [
        element("text", place, x=x.start - 9, y=TOP + (row + 0.5) * height + 4, class_="tick end")
        for row, place in enumerate(curve.places)
    ]
    under = element("text", curve.y_label, x=(x.start + x.end) / 2, y=bottom + 34, class_="name middle")
    return join([*grid, *ticks, *names, under])


def _marks(curve: Curve, name: str, points: Sequence[Point], class_: str, x: Scale, rows: Sequence[float]) -> Html:
    bands = {at: (lo, hi) for at, lo, hi in curve.bands.get(name, ())}
    write = percent if curve.percent else number
    drawn = []
    for (at, value), y in zip(points, rows, strict=True):
        drawn += [_bar(*bands[at], class_, x, y)] if at in bands else []
        text = element("title", f"{label(name, curve)}, {curve.places[int(at) - 1]}: {write(value)}")
        drawn.append(element("circle", text, cx=x(value), cy=y, r=4, class_=f"dot {class_}"))
    return join(drawn)


def _bar(lo: float, hi: float, class_: str, x: Scale, y: float) -> Html:
    # An interval of a mean of rates may leave [0, 1]; it is drawn up to the end of the axis.
    ends = [x(min(max(edge, x.low), x.high)) for edge in (lo, hi)]
    return element("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_=f"interval thin {class_}")
