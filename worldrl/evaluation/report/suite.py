"""The section of a page about one policy on a suite: each task's rate with its interval, the suite's score last."""

from __future__ import annotations

from worldrl.evaluation.report.markup import Child, Html, breakable, element, join
from worldrl.evaluation.report.model import ReportData, SuccessRow
from worldrl.evaluation.report.rates import bars_axis, rate_bar
from worldrl.evaluation.report.tables import small, table
from worldrl.evaluation.report.words import interval, percent

NOTE = (
    "Dots are success rates, bars their 95\u00a0% Wilson intervals. The initial states are fixed, so an interval speaks "
    "of another draw of such states, not of other scenes, and it is not corrected for testing several tasks."
)


def rates(data: ReportData) -> Html:
    """Success per task where one policy was measured, and nothing was before it; the last row is of all tasks."""
    if not data.tasks:
        return element("p", "Not measured: real success was not evaluated.", class_="missing")
    headers: list[Child] = ["Task", join(["Success", bars_axis((0.0, 0.5, 1.0))]), "Rate", "Episodes"]
    shown = table(
        headers,
        [_cells(row) for row in data.tasks],
        class_="success cards",
        cell_classes=(None, "bars-cell", None, None),
        row_classes=[None] * (len(data.tasks) - 1) + ["total"],
    )
    return join([element("p", NOTE, class_="note"), element("div", shown, class_="card")])


def _cells(row: SuccessRow) -> list[Child]:
    name = small(breakable(row.task), row.kind) if row.kind else breakable(row.task)
    if row.after is None:
        return [name, "", "not measured", ""]
    bar = join([rate_bar(row), element("div", bars_axis(), class_="narrow")])
    return [
        name,
        bar,
        small(percent(row.after["rate"]), interval(row.after)),
        f"{row.after['k']} of {row.after['n']}",
    ]
