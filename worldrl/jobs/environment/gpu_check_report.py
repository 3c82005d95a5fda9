"""The page of ``worldrl gpu-check``, and the line of each check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from worldrl.evaluation.report.model import Number as Headline
from worldrl.evaluation.report.model import ReportData, Table
from worldrl.evaluation.report.words import NBSP, percent
from worldrl.evaluation.report.words import number as written
from worldrl.recipes.gpu.outcome import MEASURED, STATUSES, GpuCheck, Number, Outcome

PAGE = ("measurements", "notes", "configuration")
HEAD = ("speed", "utilisation", "time", "peak memory")
"""Numbers that a row of the first table shows, where a check has them."""


def line(outcome: Outcome) -> str:
    """One line for people."""
    found = outcome.numbers
    first = [f"{name} {shown(found[name])}" for name in HEAD if name in found] or [
        f"{name} {shown(number)}" for name, number in found.items()
    ][:3]
    numbers = ", ".join(first) if outcome.status == MEASURED else outcome.reason
    return f"{outcome.status:8} {outcome.name} ({outcome.seconds:.0f} s): {numbers}"


def shown(number: Number) -> str:
    """A number with its interval."""
    if number.unit == "of the anchor":
        return f"{percent(number.value)}{_interval(number, 100, '.1f')}"
    unit = f"{NBSP}{number.unit}" if number.unit else ""
    return f"{written(number.value)}{_interval(number, 1, '.3g')}{unit}"


def _interval(number: Number, factor: float, digits: str) -> str:
    if number.lo is None or number.hi is None:
        return ""
    return f" [{factor * number.lo:{digits}}, {factor * number.hi:{digits}}]"


def report_page(found: GpuCheck) -> ReportData:
    """Gather what the page shows."""
    count = Counter(check.status for check in found.checks)
    totals = ", ".join(f"{count[status]} {status}" for status in STATUSES)
    measured = [check for check in found.checks if check.status == MEASURED]
    size = (
        "Sizes are tiny: the numbers show that the code runs, and nothing about speed." if found.size == "tiny" else ""
    )
    return ReportData(
        title=f"gpu-check of {found.card.name}",
        sentence=f"{len(found.checks)} checks on {found.card.device}: {totals}.",
        sections=PAGE,
        headline=[Headline("Device memory", found.card.memory_gb, "GB"), Headline("CPU cores", found.card.cores)],
        tables=[speed_table(measured), number_table(measured), missing_table(found.checks)],
        provenance={"device": found.card.name, "cuda": found.card.cuda, "driver": found.card.driver},
        notes=[
            *([size] if size else []),
            "Times are read after the device has finished; warm-up does not count.",
            "A number is the median of its repetitions with a 95 % bootstrap interval.",
            "The anchor is the fastest of several matrix products and of the model's own largest products.",
            "Weights are random, and nothing is downloaded.",
        ],
    )


def speed_table(measured: Sequence[Outcome]) -> Table:
    """Checks that have a speed."""
    rows = [
        (check.name, *(shown(check.numbers[name]) if name in check.numbers else "" for name in HEAD))
        for check in measured
        if "speed" in check.numbers
    ]
    return Table("Speed", ("Check", *(name.capitalize() for name in HEAD)), rows)


def number_table(measured: Sequence[Outcome]) -> Table:
    """Every number."""
    rows = [
        (check.name, name, shown(number), str(number.n)) for check in measured for name, number in check.numbers.items()
    ]
    return Table("All numbers", ("Check", "Number", "Value", "Repetitions"), rows)


def missing_table(outcomes: Sequence[Outcome]) -> Table:
    """What was not measured, and why."""
    rows = [(check.name, check.status, check.reason) for check in outcomes if check.status != MEASURED]
    return Table("Not measured", ("Check", "Outcome", "Reason"), rows)
