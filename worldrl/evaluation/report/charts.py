"""Every chart of a page as marks of an SVG image: geometry alone, which the page's template draws and escapes.

Colours come from the style sheet by class. What was imagined is dashed and hollow besides being coloured, so that print
and colour-blind readers see it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldrl.evaluation.report.checks import Rate, is_number
from worldrl.evaluation.report.model import Curve, ImaginedReal, Point, SuccessRow
from worldrl.evaluation.report.scale import Scale, fitted, fraction_scale, spread, tick_text
from worldrl.evaluation.report.words import number, percent, rate_text

WIDTH, HEIGHT = 400.0, 232.0
LEFT, TOP, BOTTOM = 52.0, 10.0, 40.0
ROW, APART = 24.0, 9.0
"""Pixels of a named place, and between the dots of two series in it."""
SCATTER, NUMBER = 340.0, 9.0
"""Pixels of its sides, and half the height of a numbered mark; marks that would touch become one."""
CHARACTER = 7.3
"""Advance of one label character in pixels; a little wide, so that labels never leave the image."""
MAX_DIRECT, MAX_LABEL = 4, 14
MAX_POINTS = 240
MAX_DOTS = 16
COLOURS = 6
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Mark:
    """One SVG element with its attributes, its text, and the title that is shown on hovering."""

    tag: str
    attributes: Mapping[str, str]
    text: str = ""
    title: str = ""


@dataclass(frozen=True)
class Drawing:
    """One image."""

    frame: Mapping[str, str]  # attributes of the ``<svg>``.
    words: str  # what it shows, for readers who cannot see it; empty where the text beside it says so.
    marks: Sequence[Mark]  # in drawing order.
    # name and style of each series, where the names do not stand beside the lines.
    legend: Sequence[tuple[str, str]] = ()


def curve_chart(curve: Curve) -> Drawing | None:
    """Draw one chart of lines, or of dots where ``curve`` has places; None where no number is finite."""
    series = {name: points for name, raw in curve.series.items() if (points := finite(raw))}
    if not series:
        return None
    return _place_chart(curve, series) if curve.places else _line_chart(curve, series)


def rate_bars(row: SuccessRow, height: float, sides: Sequence[str]) -> Drawing:
    """Draw rates of a row as dots on interval bars over a 0 to 100 % track.

    Coordinates are percentages, so that one image fits a table cell and a telephone alike. ``height`` is in pixels; a
    missing rate of ``sides`` (``before``, ``after``) leaves its track empty and is named in the description.
    """
    marks = [_line(f"{100 * q:g}%", 0, f"{100 * q:g}%", height, "grid") for q in QUARTERS]
    said = []
    for place, side in enumerate(sides):
        rate: Rate | None = getattr(row, side)
        words = rate_text(rate) if rate else "not measured"
        said.append(f"{side} {words}" if len(sides) > 1 else words)
        if rate:
            lo, value, hi = (f"{100 * rate[key]:.2f}%" for key in ("lo", "rate", "hi"))
            y = height * (0.5 + 0.36 * (place - (len(sides) - 1) / 2))
            marks += [_line(lo, y, hi, y, f"interval {side}"), _dot(value, y, 5.5, f"dot {side}", f"{side}: {words}")]
    return Drawing({"class": "bars", "height": f"{height:g}"}, f"{row.task}: {'; '.join(said)}.", marks)


def rate_axis(shown: Sequence[float] = QUARTERS) -> Drawing:
    """Draw the tick texts that stand above or below a column of bars; fewer for a narrow column."""
    marks = [_text(tick_text(q, QUARTERS, True), f"{100 * q:g}%", 12, "tick middle") for q in shown]
    return Drawing({"class": "bars", "height": "16"}, "", marks)


def scatter(rows: Sequence[ImaginedReal]) -> Drawing | None:
    """Draw imagined against real success, numbered as in the table beside it; None where no row has both rates."""
    known = [
        (index, row.label, row.real, row.imagined) for index, row in enumerate(rows, 1) if row.real and row.imagined
    ]
    if not known:
        return None
    x, y = fraction_scale(LEFT, SCATTER - 24), fraction_scale(SCATTER - 46, 24.0)
    marks = [
        *_axes(x, y, "real success", y_percent=True, x_percent=True, apart=8),
        _line(x(0), y(0), x(1), y(1), "diagonal"),
        _text("imagined success", x(0), 13, "name"),
    ]
    numbers: dict[tuple[float, float], list[str]] = {}
    for index, _, real, imagined in known:
        cx, cy = x(real["rate"]), y(imagined["rate"])
        marks += [
            _line(x(real["lo"]), cy, x(real["hi"]), cy, "interval after thin"),
            _line(cx, y(imagined["lo"]), cx, y(imagined["hi"]), "interval imagined thin"),
        ]
        near = (place for place in numbers if math.dist(place, (cx, cy)) < 2 * NUMBER)
        numbers.setdefault(next(near, (cx, cy)), []).append(str(index))
    for (cx, cy), indices in numbers.items():
        marks += _numbered(cx, cy, ", ".join(indices))
    words = "; ".join(
        f"{name}: real {rate_text(real)}, imagined {rate_text(imagine_policy)}"
        for _, name, real, imagine_policy in known
    )
    return Drawing(_frame(SCATTER, SCATTER, "chart square"), f"Imagined against real success. {words}.", marks)


def _numbered(cx: float, cy: float, numbers: str) -> list[Mark]:
    half = max(NUMBER, 2.8 * len(numbers) + 4)  # digits of its own, smaller type
    box = {"x": cx - half, "y": cy - NUMBER, "width": 2 * half, "height": 2 * NUMBER, "rx": NUMBER}
    attributes = {name: _at(value) for name, value in box.items()} | {"class": "number"}
    return [Mark("rect", attributes), _text(numbers, cx, cy + 4, "number middle")]


def label(name: str, curve: Curve) -> str:
    """Name a series; an imagined one always says so."""
    return f"{name} (imagined)" if name in curve.imagined and "imagined" not in name.lower() else name


def finite(points: Sequence[Point]) -> list[Point]:
    """Keep the points whose both numbers are finite, in order of x."""
    return sorted((float(x), float(y)) for x, y in points if is_number(x) and is_number(y))


# --- lines over an axis ---------------------------------------------------------------------------------------------


def _line_chart(curve: Curve, series: Mapping[str, list[Point]]) -> Drawing:
    classes = _classes(curve)
    longest = max(len(label(name, curve)) for name in series)
    direct = len(series) == 1 or (len(series) <= MAX_DIRECT and longest <= MAX_LABEL)
    named = direct and len(series) > 1
    right = WIDTH - 14.0 - (CHARACTER * longest if named else 4)
    x = fitted([x for points in series.values() for x, _ in points], LEFT, right, pad=False)
    marks = _axes(x, y := _heights(curve, series, HEIGHT - BOTTOM, TOP), curve.x_label, y_percent=curve.percent)
    for name in series:
        marks += _band(curve, name, classes[name], x, y)
    for name, points in series.items():
        marks += _curve(curve, name, thin(points), classes[name], x, y)
    if named:
        ends = spread([y(thin(points)[-1][1]) for points in series.values()], 15.0, TOP, HEIGHT - BOTTOM)
        marks += [
            _text(label(name, curve), x.end + 8, end + 4, f"label {classes[name]}")
            for name, end in zip(series, ends, strict=True)
        ]
    legend = () if direct else _legend(curve, series, classes)
    return Drawing(_frame(WIDTH, HEIGHT, "chart"), describe(curve), marks, legend)


def _heights(curve: Curve, series: Mapping[str, list[Point]], start: float, end: float) -> Scale:
    """Return the scale of the measured axis, which holds every number and both ends of every band."""
    if curve.percent:
        return fraction_scale(start, end)
    ends = [edge for name in series for _, lo, hi in curve.bands.get(name, ()) for edge in (lo, hi) if is_number(edge)]
    return fitted([y for points in series.values() for _, y in points] + ends, start, end)


def _axes(
    x: Scale, y: Scale, x_label: str, *, y_percent: bool, x_percent: bool = False, apart: float = 0
) -> list[Mark]:
    return [
        *(_line(x.start, y(tick), x.end, y(tick), "grid") for tick in y.ticks),
        _line(x.start, y.start, x.end, y.start, "axis"),
        *(_text(tick_text(tick, y.ticks, y_percent), x.start - 7 - apart, y(tick) + 4, "tick end") for tick in y.ticks),
        *(_text(tick_text(tick, x.ticks, x_percent), x(tick), y.start + 17 + apart, "tick middle") for tick in x.ticks),
        _text(x_label, (x.start + x.end) / 2, y.start + 34 + apart, "name middle"),
    ]


def _band(curve: Curve, name: str, class_: str, x: Scale, y: Scale) -> list[Mark]:
    known = [edge for edge in curve.bands.get(name, ()) if all(map(is_number, edge))]
    if len(known) < 2:
        return []
    edges = [(px, hi) for px, _, hi in known] + [(px, lo) for px, lo, _ in reversed(known)]
    # An interval of a mean of rates may leave [0, 1]; it is drawn up to the end of the axis.
    outline = [(px, min(max(py, y.low), y.high)) for px, py in edges]
    return [Mark("polygon", {"points": _path(outline, x, y), "class": f"band {class_}"})]


def _curve(curve: Curve, name: str, points: Sequence[Point], class_: str, x: Scale, y: Scale) -> list[Mark]:
    line = [Mark("polyline", {"points": _path(points, x, y), "class": f"line {class_}"})] if len(points) > 1 else []
    if len(points) > MAX_DOTS:
        return line
    title, write = label(name, curve), percent if curve.percent else number
    dots = (_dot(x(px), y(py), 3.5, f"dot {class_}", f"{title}: {write(py)} at {number(px)}") for px, py in points)
    return [*line, *dots]


def thin(points: Sequence[Point]) -> list[Point]:
    """Average neighbours until at most ``MAX_POINTS`` are left, so that a page stays small."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def is_thinned(curve: Curve) -> bool:
    """Whether the chart shows averages of neighbouring points."""
    return any(len(points) > MAX_POINTS for points in curve.series.values())


# --- dots of named places, a row each, which no line may join ---------------------------------------------------------


def _place_chart(curve: Curve, series: Mapping[str, list[Point]]) -> Drawing:
    height = ROW + APART * (len(series) - 1)
    bottom = TOP + height * len(curve.places)
    x, classes = _heights(curve, series, 12.0 + CHARACTER * max(map(len, curve.places)), WIDTH - 20), _classes(curve)
    marks = [
        *(_line(x(tick), TOP, x(tick), bottom, "grid") for tick in x.ticks),
        *(_text(tick_text(tick, x.ticks, curve.percent), x(tick), bottom + 17, "tick middle") for tick in x.ticks),
        *(
            _text(place, x.start - 9, TOP + (row + 0.5) * height + 4, "tick end")
            for row, place in enumerate(curve.places)
        ),
        _text(curve.y_label, (x.start + x.end) / 2, bottom + 34, "name middle"),
    ]
    for index, (name, points) in enumerate(series.items()):
        shift = APART * (index - (len(series) - 1) / 2)
        for at, value in points:
            marks += _place(curve, name, at, value, classes[name], x, TOP + (at - 0.5) * height + shift)
    legend = _legend(curve, series, classes) if len(series) > 1 else ()
    return Drawing(_frame(WIDTH, bottom + BOTTOM, "chart"), describe(curve), marks, legend)


def _place(curve: Curve, name: str, at: float, value: float, class_: str, x: Scale, y: float) -> list[Mark]:
    title = f"{label(name, curve)}, {curve.places[int(at) - 1]}: {(percent if curve.percent else number)(value)}"
    dot = _dot(x(value), y, 4, f"dot {class_}", title)
    # An interval of a mean of rates may leave [0, 1]; it is drawn up to the end of the axis.
    ends = [
        [x(min(max(edge, x.low), x.high)) for edge in (lo, hi)] for px, lo, hi in curve.bands.get(name, ()) if px == at
    ]
    return [*(_line(lo, y, hi, y, f"interval thin {class_}") for lo, hi in ends[-1:]), dot]


# --- what both kinds share --------------------------------------------------------------------------------------------


def describe(curve: Curve) -> str:
    """Say in words where each series starts and ends (or what it is at each place), for readers who cannot see it."""
    write, parts = percent if curve.percent else number, []
    for name, raw in curve.series.items():
        if curve.places:
            known = (f"{curve.places[int(at) - 1]} {write(value)}" for at, value in finite(raw))
            parts.append(f"{label(name, curve)} {', '.join(known)}")
        elif points := finite(raw):
            (x0, y0), (x1, y1) = points[0], points[-1]
            parts.append(f"{label(name, curve)} from {write(y0)} at {number(x0)} to {write(y1)} at {number(x1)}")
    over = "" if curve.places else f" over {curve.x_label}"
    return f"{curve.title}, {curve.y_label}{over}: {'; '.join(parts)}."


def _classes(curve: Curve) -> dict[str, str]:
    """Choose each series' style: colours in order, real ones solid; one imagined series has its own colour."""
    real = [name for name in curve.series if name not in curve.imagined]
    classes = {name: f"s{index % COLOURS}" for index, name in enumerate(real)}
    for index, name in enumerate(curve.imagined):
        colour = "imagined" if len(curve.imagined) == 1 else f"s{(len(real) + index) % COLOURS}"
        classes[name] = f"{colour} dashed"
    return classes


def _legend(curve: Curve, series: Mapping[str, list[Point]], classes: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(label(name, curve), classes[name]) for name in series]


def _frame(width: float, height: float, class_: str) -> dict[str, str]:
    return {"viewBox": f"0 0 {width:g} {height:g}", "class": class_}


def _path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)


def _line(x1: float | str, y1: float, x2: float | str, y2: float, class_: str) -> Mark:
    return Mark("line", {"x1": _at(x1), "x2": _at(x2), "y1": _at(y1), "y2": _at(y2), "class": class_})


def _dot(cx: float | str, cy: float, r: float, class_: str, title: str = "") -> Mark:
    return Mark("circle", {"cx": _at(cx), "cy": _at(cy), "r": _at(r), "class": class_}, title=title)


def _text(words: str, x: float | str, y: float, class_: str) -> Mark:
    return Mark("text", {"x": _at(x), "y": _at(y), "class": class_}, words)


def _at(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:.2f}".rstrip("0").rstrip(".")
