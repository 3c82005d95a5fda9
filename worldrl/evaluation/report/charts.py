"""Line charts as inline SVG: axes, bands, direct labels. Colours come from the page's style sheet by class.

What was imagined is dashed and hollow besides being coloured, so that print and colour-blind readers see it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from worldrl.evaluation.report.checks import is_number
from worldrl.evaluation.report.markup import Html, element, join
from worldrl.evaluation.report.model import BandPoint, Curve, Point
from worldrl.evaluation.report.scale import Scale, fitted, fraction_scale, spread, tick_text
from worldrl.evaluation.report.words import number, percent

WIDTH, HEIGHT = 400.0, 232.0
LEFT, TOP, BOTTOM = 52.0, 10.0, 40.0
CHARACTER = 7.3
"""Advance of one label character in pixels; a little wide, so that labels never leave the picture."""
MAX_DIRECT = 4
MAX_LABEL = 14
MAX_POINTS = 240
COLOURS = 6


def line_chart(curve: Curve) -> Html:
    """Draw one chart.

    Args:
        curve: the data; series without a finite point are left out.

    Returns:
        An ``<svg>`` (with a legend above it where direct labels would not fit), or the sentence that nothing was
        measured.
    """
    series = finite_series(curve)
    if not series:
        return nothing_measured(curve)
    classes = series_classes(curve)
    longest = max(len(label(name, curve)) for name in series)
    direct = len(series) == 1 or (len(series) <= MAX_DIRECT and longest <= MAX_LABEL)
    right = 14.0 + (CHARACTER * longest if direct and len(series) > 1 else 4)
    x, y = _scales(curve, series, right)
    marks = [_band(curve.bands.get(name, ()), classes[name], x, y) for name in series]
    marks += [_line(points, classes[name], label(name, curve), curve.percent, x, y) for name, points in series.items()]
    if direct and len(series) > 1:
        marks.append(_direct_labels(series, classes, curve, x, y))
    svg = element(
        "svg",
        axes(x, y, curve.x_label, curve.percent),
        *marks,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        class_="chart",
        role="img",
        aria_label=describe(curve),
    )
    return svg if direct else join([legend(series, classes, curve), svg])


def finite_series(curve: Curve) -> dict[str, list[Point]]:
    """Keep the series that have a finite point, with those points alone."""
    return {name: points for name, raw in curve.series.items() if (points := finite(raw))}


def nothing_measured(curve: Curve) -> Html:
    """Say that a chart has nothing to show."""
    return element("p", f"Not measured: {curve.title} has no finite number.", class_="missing")


def heights(curve: Curve, series: Mapping[str, list[Point]]) -> list[float]:
    """List every y of some series, and both ends of their bands."""
    bands = [edge for name in series for _, lo, hi in curve.bands.get(name, ()) for edge in (lo, hi) if is_number(edge)]
    return [y for points in series.values() for _, y in points] + bands


def finite(points: Sequence[Point]) -> list[Point]:
    """Keep the points whose both numbers are finite, in order of x."""
    return sorted((float(x), float(y)) for x, y in points if is_number(x) and is_number(y))


def thin(points: Sequence[Point]) -> list[Point]:
    """Average neighbours until at most ``MAX_POINTS`` are left, so that a page stays small."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def is_thinned(curve: Curve) -> bool:
    """Whether the chart shows averages of neighbouring points."""
    return any(len(points) > MAX_POINTS for points in curve.series.values())


def label(name: str, curve: Curve) -> str:
    """Name a series; an imagined one always says so."""
    return f"{name} (imagined)" if name in curve.imagined and "imagined" not in name.lower() else name


def describe(curve: Curve) -> str:
    """Say in words where each series starts and ends (or what it is at each place), for readers who cannot see the chart."""
    write = percent if curve.percent else number
    if curve.places:
        return f"{curve.title}, {curve.y_label}: {'; '.join(_described(curve, name, write) for name in curve.series)}."
    parts = []
    for name, raw in curve.series.items():
        if points := finite(raw):
            (x0, y0), (x1, y1) = points[0], points[-1]
            parts.append(f"{label(name, curve)} from {write(y0)} at {number(x0)} to {write(y1)} at {number(x1)}")
    return f"{curve.title}, {curve.y_label} over {curve.x_label}: {'; '.join(parts)}."


def _described(curve: Curve, name: str, write: Callable[[float], str]) -> str:
    known = (f"{curve.places[int(at) - 1]} {write(value)}" for at, value in finite(curve.series[name]))
    return f"{label(name, curve)} {', '.join(known)}"


def axes(x: Scale, y: Scale, x_label: str, as_percent: bool, y_percent_only: bool = True) -> Html:
    """Draw grid lines, tick texts and the horizontal axis' label.

    Args:
        x: horizontal scale.
        y: vertical scale.
        x_label: text under the axis.
        as_percent: the vertical axis is a rate.
        y_percent_only: False where the horizontal axis is a rate too.
    """
    grid = [element("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid") for tick in y.ticks]
    y_texts = [
        element("text", tick_text(tick, y.ticks, as_percent), x=x.start - 7, y=y(tick) + 4, class_="tick end")
        for tick in y.ticks
    ]
    x_percent = as_percent and not y_percent_only
    x_texts = [
        element("text", tick_text(tick, x.ticks, x_percent), x=x(tick), y=y.start + 17, class_="tick middle")
        for tick in x.ticks
    ]
    base = element("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis")
    name = element("text", x_label, x=(x.start + x.end) / 2, y=y.start + 34, class_="name middle")
    return join([*grid, base, *y_texts, *x_texts, name])


def series_classes(curve: Curve) -> dict[str, str]:
    """Choose each series' style: colours in order, real ones solid; one imagined series has its own colour."""
    real = [name for name in curve.series if name not in curve.imagined]
    classes = {name: f"s{index % COLOURS}" for index, name in enumerate(real)}
    for index, name in enumerate(curve.imagined):
        colour = "imagined" if len(curve.imagined) == 1 else f"s{(len(real) + index) % COLOURS}"
        classes[name] = f"{colour} dashed"
    return classes


def _scales(curve: Curve, series: dict[str, list[Point]], right: float) -> tuple[Scale, Scale]:
    xs = [x for points in series.values() for x, _ in points]
    x = fitted(xs, LEFT, WIDTH - right, pad=False)
    y = fraction_scale(HEIGHT - BOTTOM, TOP) if curve.percent else fitted(heights(curve, series), HEIGHT - BOTTOM, TOP)
    return x, y


def _path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)


def _band(band: Sequence[BandPoint], class_: str, x: Scale, y: Scale) -> Html:
    known = [edge for edge in band if all(is_number(value) for value in edge)]
    if len(known) < 2:
        return Html("")
    edges = [(px, hi) for px, _, hi in known] + [(px, lo) for px, lo, _ in reversed(known)]
    # An interval of a mean of rates may leave [0, 1]; it is drawn up to the end of the axis.
    outline = [(px, min(max(py, y.low), y.high)) for px, py in edges]
    return element("polygon", points=_path(outline, x, y), class_=f"band {class_}")


def _line(points: list[Point], class_: str, name: str, as_percent: bool, x: Scale, y: Scale) -> Html:
    drawn = thin(points)
    write = percent if as_percent else number
    line = element("polyline", points=_path(drawn, x, y), class_=f"line {class_}") if len(drawn) > 1 else Html("")
    if len(drawn) > 16:
        return line
    dots = [
        element(
            "circle",
            element("title", f"{name}: {write(py)} at {number(px)}"),
            cx=x(px),
            cy=y(py),
            r=3.5,
            class_=f"dot {class_}",
        )
        for px, py in drawn
    ]
    return join([line, *dots])


def _direct_labels(series: dict[str, list[Point]], classes: dict[str, str], curve: Curve, x: Scale, y: Scale) -> Html:
    places = spread([y(thin(points)[-1][1]) for points in series.values()], 15.0, TOP, HEIGHT - BOTTOM)
    return join(
        element("text", label(name, curve), x=x.end + 8, y=height + 4, class_=f"label {classes[name]}")
        for name, height in zip(series, places, strict=True)
    )


def legend(series: dict[str, list[Point]], classes: dict[str, str], curve: Curve) -> Html:
    """List the series with their lines, for charts without room for direct labels."""

    def entry(name: str) -> Html:
        line = element("line", x1=0, x2=26, y1=6, y2=6, class_=f"line {classes[name]}")
        return element("li", element("svg", line, width=26, height=12, aria_hidden="true"), label(name, curve))

    return element("ul", *(entry(name) for name in series), class_="legend")
