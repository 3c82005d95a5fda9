"""The closing table on the terminal: before, after and gain per task, the verdict, imagined numbers labelled."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from worldrl.evaluation.report.checks import Rate
from worldrl.evaluation.report.model import ReportData, SuccessRow
from worldrl.evaluation.report.words import count, gain_interval, gain_kind, points, statement

WIDE = 110
"""Columns from which a number and its interval share a line."""
STYLES = {"gain": "bold green", "loss": "bold red", "none": "", "unmeasured": "dim", "measured": "", "imagined": ""}


def show(data: ReportData, console: Console) -> None:
    """Print the success table, imagined beside real, failed gates, and the verdict last."""
    # A narrow terminal gets each interval under its number instead of beside it.
    gap = " " if console.width >= WIDE else "\n"
    if data.tasks or data.overall:
        console.print(success_table(data, gap))
    if data.imagined_real:
        console.print(imagined_table(data, gap))
    failed = [gate.name for gate in data.gates if gate.passed is False]
    if failed:
        gates = count(len(data.gates), "gate")
        console.print(Text(f"{len(failed)} of {gates} failed: {', '.join(failed)}", style="bold yellow"))
    found = statement(data)
    console.print(Text(found.sentence, style=STYLES[found.kind]))


def success_table(data: ReportData, gap: str = " ") -> Table:
    """Build the table of real success; the total stands last, ruled off; ``gap`` goes before each interval."""
    table = Table(title="Real success in the simulator, per cent, with 95\u00a0% intervals", title_justify="left")
    table.add_column("Task", overflow="fold")
    for name in ("Before", "After", "Gain, points", "Episodes"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in data.tasks:
        table.add_row(*_cells(row, gap))
    if data.overall:
        table.add_section()
        table.add_row(*_cells(data.overall, gap), style="bold")
    return table


def imagined_table(data: ReportData, gap: str = " ") -> Table:
    """Build the table that puts imagined beside real success."""
    table = Table(title="Imagined beside real success, per cent", title_justify="left")
    table.add_column("Policy", overflow="fold")
    table.add_column("Imagined", justify="right", no_wrap=True, style="italic")
    table.add_column("Real", justify="right", no_wrap=True)
    for row in data.imagined_real:
        table.add_row(Text(row.label), _rate(row.imagined, gap), _rate(row.real, gap))
    return table


def _cells(row: SuccessRow, gap: str) -> list[Text]:
    paired = row.paired
    gain = Text("not measured", style="dim")
    if paired:
        gain = Text(f"{points(paired['diff'])}{gap}({gain_interval(paired)})", style=STYLES[gain_kind(paired)])
    known = next((rate["n"] for rate in (row.paired, row.after, row.before) if rate), 0)
    return [Text(row.task), _rate(row.before, gap), _rate(row.after, gap), gain, Text(str(known))]


def _rate(rate: Rate | None, gap: str) -> Text:
    # Text, not markup: a label such as "[red]" is shown, never obeyed.
    if not rate:
        return Text("not measured", style="dim")
    lo, value, hi = (f"{100 * rate[key]:.1f}" for key in ("lo", "rate", "hi"))
    return Text(f"{value}{gap}({lo} to {hi})")
