"""``worldrl compare``: two evaluations of the same protocol, paired episode by episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from worldrl.core.storage.log import console
from worldrl.evaluation.policy.compare import compare
from worldrl.evaluation.policy.result import EvalResult
from worldrl.recipes.run import open_run
from worldrl.settings import required, setting


@dataclass
class CompareSettings:
    """Which two evaluations; the result is about ``b`` relative to ``a``."""

    a: str = required("run directory (or its result.json) of the evaluation before", made_by="worldrl evaluate")
    b: str = required("run directory (or its result.json) of the evaluation after", made_by="worldrl evaluate")
    run_dir: str = setting("runs/compare", "where the result is written")
    at_end: bool = setting(False, "compare success at the end of the episode instead of at some frame")


def main(settings: CompareSettings) -> dict[str, Any]:
    """Compare, write ``result.json`` and print the closing table.

    Returns the metrics of :meth:`~worldrl.evaluation.policy.compare.Comparison.metrics`. Raises ProtocolError (the
    two were measured under different protocols, or one is not finished).
    """
    a, b = EvalResult.load(Path(settings.a)), EvalResult.load(Path(settings.b))
    metrics = compare(a, b, at_end=settings.at_end).metrics()
    with open_run("compare", settings) as run:
        run.write_result(metrics, seed=a.protocol.seed, device="cpu", protocol_hash=a.protocol.hash)
    show(metrics)
    return metrics


def show(metrics: Mapping[str, Any]) -> None:
    """Print the closing table."""
    table = Table(
        title=f"{metrics['b']} (b) against {metrics['a']} (a) on the same episodes",
        caption="p: exact McNemar; per task adjusted after Holm",
    )
    table.add_column("task")
    for heading in ("a", "b", "only a", "only b", "b − a (%)", "95 %", "p"):
        table.add_column(heading, justify="right")
    for task, entry in metrics["tasks"].items():
        _add_row(table, task, entry, f"{entry['p_holm']:.2g}")
    _add_row(table, "all", metrics, f"{metrics['paired']['p']:.2g}")
    console().print(table)
    for note in metrics["notes"]:
        console().print(f"note: measured differently: {note}", markup=False)
    if not metrics["valid"]:
        console().print("not valid: too many episodes of one evaluation were run again after a worker died")


def _add_row(table: Table, name: str, entry: Mapping[str, Any], p: str) -> None:
    before, after, pair = entry["before"], entry["after"], entry["paired"]
    table.add_row(
        name,
        f"{before['k']}/{before['n']}",
        f"{after['k']}/{after['n']}",
        str(pair["only_a"]),
        str(pair["only_b"]),
        f"{100 * pair['diff']:+.1f}",
        f"{100 * pair['lo']:+.0f} … {100 * pair['hi']:+.0f}",
        p,
    )
