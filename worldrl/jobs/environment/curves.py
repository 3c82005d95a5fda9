"""``worldrl curves``: one metric of several runs in one figure, the mean over seeds with its interval."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import console
from worldrl.evaluation.report.model import ReportData
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.tables import csv_bytes, print_table
from worldrl.runs.curves import figure, grouped, last_values, lines, repeated
from worldrl.runs.listing import chosen
from worldrl.runs.reading import find_runs
from worldrl.settings import setting

HEADERS = ("group", "run", "seed", "step", "value")
NOTES = (
    "A line is the mean over runs that differ in no setting but the seed and those that change no method, or over runs of equal `by`.",
    "The band is Student's 95 % interval over runs at one step; of all steps together it says less. One run has no band.",
    "Runs of a line are compared at the steps that all of them have reached; between their own steps values are interpolated.",
)


@dataclass
class CurvesSettings:
    """Which curve of which runs, and where the figure goes."""

    metric: str = setting("", "end of the curve's name, for example evaluation/return; empty or wrong lists them")
    folder: str = setting("runs", "folder whose run directories are read, at any depth")
    filter: str = setting("", "keep only runs that fit all words: rounds=3 (a setting), state=finished, or any text")
    by: list[str] = setting([], "settings whose values make a line each; []: all in which the runs' methods differ")
    output: str = setting("", "the page; a table of all values goes beside it as .csv; empty: curves.html in folder")


def main(settings: CurvesSettings) -> dict[str, Any]:
    """Draw the figure, write page and table, and print the last values.

    Returns ``{"curves": path, "metric": whole name, "groups": {name: runs}}``. Raises RunDirectoryError (no such
    folder), SettingError (no run has such a curve, or several fit) and ArtefactError (runs without common steps, or the
    page cannot be written).
    """
    folder = Path(settings.folder)
    runs = chosen(find_runs(folder), settings.filter)
    metric, groups = grouped(folder, runs, settings.metric, settings.by)
    path = Path(settings.output) if settings.output else folder / "curves.html"
    table, notes = last_values(groups), repeated(groups)
    used = sum(len(group.runs) for group in groups)
    data = ReportData(
        title=f"Curves: {metric}",
        sentence=f"{metric} of {used} runs in {len(groups)} lines.",
        sections=("curves", "measurements", "notes"),
        curves=[figure(metric, groups)],
        tables=[table],
        notes=[*notes, *NOTES],
    )
    write_file(path, render(data).encode(), error=ArtefactError)
    write_file(path.with_suffix(".csv"), csv_bytes(HEADERS, lines(groups)), error=ArtefactError)
    print_table(table, console())
    for note in notes:
        console().print(f"note: {note}", markup=False)
    console().print(f"figure: {path}", markup=False)
    return {"curves": str(path), "metric": metric, "groups": {group.name: list(group.runs) for group in groups}}
