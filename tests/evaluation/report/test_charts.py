"""Bands of charts stay within the axes, and no policy hides another one."""

from worldrl.evaluation.report.charts import TOP, curve_chart, scatter
from worldrl.evaluation.report.model import Curve, ImaginedReal


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


def test_policies_at_one_place_share_a_mark_that_names_them_all():
    def at(k):
        return {"k": k, "n": 100, "rate": k / 100, "lo": 0.0, "hi": 1.0, "method": "wilson"}

    drawn = scatter([ImaginedReal(str(k), at(k), at(30)) for k in (20, 80, 22)])
    assert drawn is not None
    assert [mark.text for mark in drawn.marks if mark.attributes["class"] == "number middle"] == ["1, 3", "2"]
    widths = [float(mark.attributes["width"]) for mark in drawn.marks if mark.tag == "rect"]
    assert widths[0] > widths[1]
    assert len([mark for mark in drawn.marks if mark.attributes["class"].startswith("interval")]) == 6
