"""Bands of charts stay within the axes."""

from worldrl.evaluation.report.charts import TOP, curve_chart
from worldrl.evaluation.report.model import Curve


def test_an_interval_beyond_a_rate_is_drawn_up_to_the_axis():
    points = [(0.0, 0.9), (1.0, 0.95)]
    curve = Curve(
        "Pulls", "pull", "share", {"neutral": points}, bands={"neutral": [(0, 0.4, 1.3), (1, -0.2, 1.2)]}, percent=True
    )
    drawn = curve_chart(curve)
    assert drawn is not None
    (outline,) = (mark.attributes["points"] for mark in drawn.marks if mark.tag == "polygon")
    ys = [float(pair.split(",")[1]) for pair in outline.split()]
    ticks = [float(mark.attributes["y1"]) for mark in drawn.marks if mark.tag == "line"]
    assert min(ys) == min(ticks) == TOP
    assert max(ys) == max(ticks)
