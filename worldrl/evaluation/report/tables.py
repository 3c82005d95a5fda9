"""One table as Markdown, as CSV and on the terminal; the page has its own template."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from worldrl.evaluation.report.model import Table

NAME_WIDTH = 24
"""Characters up to which names in the first column stay on one line."""


def markdown(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as Markdown, without a final newline."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (headers, ["---"] * len(headers), *rows))


def csv_bytes(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Write a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headers, *rows])
    return text.getvalue().encode()


def print_table(given: Table, console: Console, columns: Sequence[int] = ()) -> None:
    """Print a table on the terminal, or those of its ``columns`` that fit there."""
    kept = columns or range(len(given.headers))
    shown = RichTable(title=Text(given.title))
    for column in kept:
        short = column == 0 and all(len(str(row[column])) <= NAME_WIDTH for row in given.rows)
        shown.add_column(Text(given.headers[column]), overflow="fold", no_wrap=short)
    for row in given.rows:
        shown.add_row(*(Text(row[column]) for column in kept))  # text, not markup: a cell such as "[red]" is shown
    console.print(shown)
