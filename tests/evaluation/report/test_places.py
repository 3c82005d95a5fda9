"""Charts of named places: ``worldrl.evaluation.report.charts`` as the page draws them."""

import re

import pytest

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.report.model import Curve, ReportData
from worldrl.evaluation.report.page import render

ARMS = ("none", "best-of-n")


def drawing(curve: Curve) -> str:
    """The figure, as it stands on the page."""
    (figure,) = re.findall(r"<figure.*?</figure>", render(ReportData("t", curves=[curve], sections=["curves"])))
    return figure


def chart(bands: bool = True) -> Curve:
    known = {"success": [(1.0, -0.2, 0.6), (2.0, 0.4, 0.6)]} if bands else {}
    return Curve("t", "", "success", {"success": [(1.0, 0.25), (2.0, 0.5)]}, known, percent=True, places=ARMS)


def test_every_place_has_its_name_and_its_dot_at_its_number() -> None:
    drawn = drawing(chart(bands=False))
    dots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    ticks = dict(zip((0.0, 0.25, 0.5, 0.75, 1.0), re.findall(r'x1="([\d.]+)"[^>]*class="grid"', drawn), strict=True))
    assert dots == pytest.approx([float(ticks[0.25]), float(ticks[0.5])], abs=0.1)
    assert all(f">{arm}<" in drawn for arm in ARMS)
    assert "polyline" not in drawn  # no line joins what has no order


def test_interval_ends_with_the_axis() -> None:
    drawn = drawing(chart())
    grid = [float(x) for x in re.findall(r'x1="([\d.]+)"[^>]*class="grid"', drawn)]
    starts = [float(x) for x in re.findall(r'x1="([\d.]+)"[^>]*class="interval', drawn)]
    assert starts[0] == pytest.approx(grid[0], abs=0.1)
    assert starts[1] > grid[1]


def test_words_name_every_place() -> None:
    assert "none 25" in drawing(chart())
    assert "best-of-n 50" in drawing(chart())


def test_several_series_are_apart_and_have_a_legend() -> None:
    both = Curve("t", "", "y", {"a": [(1.0, 3.0)], "b": [(1.0, 3.0)]}, places=("here",))
    drawn = drawing(both)
    heights = re.findall(r'cy="([\d.]+)"', drawn)
    assert len(set(heights)) == 2
    assert 'class="legend"' in drawn


def test_point_at_no_place_is_refused() -> None:
    with pytest.raises(ArtefactError, match=r"x must be 1 to 2, the places, got \[3"):
        Curve("t", "", "y", {"a": [(3.0, 1.0)]}, places=ARMS)


def test_nothing_finite_says_so() -> None:
    assert "Not measured" in drawing(Curve("t", "", "y", {"a": [(1.0, float("nan"))]}, places=ARMS))
