"""The results of ``worldrl benchmark`` as CSV and Markdown, and its protocol in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worldrl.core.storage.atomic import write_file
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import UNMEASURED, EvalResult
from worldrl.evaluation.report.tables import csv_bytes, markdown

SAID_OF_ACTIONS = ("names", "gripper_open", "gripper_closed")
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
    write_file(folder / "results.csv", csv_bytes(COLUMNS, rows))
    cells = [(t, f"{k}/{n}", f"{100 * r:.0f} %", f"{100 * lo:.0f}–{100 * hi:.0f} %") for t, k, n, r, lo, hi, *_ in rows]
    head = f"{result.policy} on {result.protocol.suite}, protocol {result.protocol.hash}"
    text = f"{head}\n\n{markdown(('task', 'success', 'rate', '95 % Wilson'), cells)}\n"
    write_file(folder / "results.md", text.encode())


def protocol_rows(protocol: EvalProtocol) -> list[tuple[str, str]]:
    """Every field of a protocol and its value; fields of several values take a row for each, of actions the telling ones."""
    values = asdict(protocol)
    values["actions"] = {name: values["actions"][name] for name in SAID_OF_ACTIONS}
    return [row for name, value in values.items() for row in _rows(name, value)]


def protocol_line(protocol: EvalProtocol, folder: Path) -> str:
    """The protocol's single numbers and words in one line, and where all of it stands."""
    single = [name for name, value in asdict(protocol).items() if isinstance(value, str | int | float)]
    facts = ", ".join(f"{name} {value}" for name, value in protocol_rows(protocol) if name in single)
    return f"protocol {protocol.hash}: {facts}; all of it: {folder / 'evaluation.json'}"


def _rows(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(name, _words(value))]
    items: dict[str, Any] = dict(value)
    if name == "horizon" and len(set(items.values())) == 1:
        return [(name, f"{next(iter(items.values()))} (every task)")]
    return [(f"{name}: {key}", _words(item)) for key, item in items.items()] or [(name, "none")]


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
