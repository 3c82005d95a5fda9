"""The results of ``worldrl benchmark`` as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from worldrl.core.atomic import write_file
from worldrl.evaluation.result import UNMEASURED, EvalResult

COLUMNS = ("task", "successes", "episodes", "rate", "low", "high", "at_end", "failed_states")


def table_rows(result: EvalResult) -> list[list[Any]]:
    """One row per task and one for all: counts, Wilson interval, and the initial states that failed."""
    rows: list[list[Any]] = []
    for task in (*result.protocol.tasks, None):
        rate = result.rate(task)
        end = result.rate(task, at_end=True)["k"] if result.end_measured else UNMEASURED
        failed = [] if task is None else [o.spec.index for o in result.of_task(task) if not o.success_once]
        numbers = [round(rate["rate"], 4), round(rate["lo"], 4), round(rate["hi"], 4)]
        rows.append([task or "all", rate["k"], rate["n"], *numbers, end, " ".join(map(str, failed))])
    return rows


def write_tables(folder: Path, result: EvalResult) -> None:
    """Write ``results.csv`` and ``results.md``."""
    rows = table_rows(result)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    write_file(folder / "results.csv", text.getvalue().encode())
    lines = [
        f"{result.policy} on {result.protocol.suite}, protocol {result.protocol.hash}",
        "",
        "| task | success | rate | 95 % Wilson |",
        "|---|---|---|---|",
        *(f"| {t} | {k}/{n} | {100 * r:.0f} % | {100 * lo:.0f}–{100 * hi:.0f} % |" for t, k, n, r, lo, hi, *_ in rows),
    ]
    write_file(folder / "results.md", ("\n".join(lines) + "\n").encode())
