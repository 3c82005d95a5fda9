"""Accessible tables: headers with scope, and cells that become labelled cards on a narrow screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.evaluation.report.markup import Child, Html, breakable, element, join
from worldrl.evaluation.report.words import number


def table(
    headers: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    caption: Child = None,
    class_: str = "cards",
    cell_classes: Sequence[str | None] = (),
    row_classes: Sequence[str | None] = (),
) -> Html:
    """Build a table whose first column names the row.

    Args:
        headers: one per column; a plain text header also labels its cells on a narrow screen.
        rows: cells; plain text is escaped.
        caption: what the table shows.
        class_: ``cards`` folds rows into cards on a narrow screen.
        cell_classes: one per column, or empty.
        row_classes: one per row, or empty.
    """
    kinds = cell_classes or [None] * len(headers)
    titles = [
        element("th", header, scope="col", role="columnheader", class_=kind)
        for header, kind in zip(headers, kinds, strict=True)
    ]
    head = element("tr", *titles, role="row")
    body = [
        _row(headers, cells, kinds, row_classes[index] if row_classes else None) for index, cells in enumerate(rows)
    ]
    return element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        class_=class_,
        role="table",
    )


def _row(headers: Sequence[Child], cells: Sequence[Child], kinds: Sequence[str | None], class_: str | None) -> Html:
    name = cells[0] if isinstance(cells[0], Html) else breakable(cells[0] or "")
    first = element("th", name, scope="row", role="rowheader", class_=kinds[0])
    # Rows laid out as a grid lose their table meaning in some readers; the roles give it back.
    rest = [
        element(
            "td", cell, role="cell", class_=kind, data_label=header if header and not isinstance(header, Html) else None
        )
        for header, cell, kind in zip(headers[1:], cells[1:], kinds[1:], strict=True)
    ]
    return element("tr", first, *rest, role="row", class_=class_)


def settings_table(values: Mapping[str, Any], caption: str) -> Html:
    """List a nested mapping as ``a.b = value`` rows, in the order given."""
    rows = [(name, value_text(value)) for name, value in flatten(values)]
    return table(("Name", "Value"), rows, caption=caption, class_="plain")


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Turn nested mappings into ``("a.b", value)`` pairs; an empty mapping stays a value."""
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        pairs += flatten(value, f"{name}.") if isinstance(value, Mapping) and value else [(name, value)]
    return pairs


def value_text(value: Any) -> str:
    """Write a configuration value as YAML would, on one line; floats keep every digit."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    return str(value)


def small(main: Child, detail: str) -> Html:
    """Put a detail under a value in smaller type."""
    return join([main, element("small", detail)])


def value_with_unit(value: Any, unit: str) -> str:
    """Write a headline value; the unit only where there is a number."""
    shown = number(value)
    return f"{shown}\u00a0{unit}" if unit and shown != "not measured" else shown
