"""``worldrl compare``: evaluations of the same protocol, paired episode by episode: of two policies, or of two methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.log import console
from worldrl.evaluation.policy.compare import compare, pooled
from worldrl.evaluation.policy.result import EvalResult
from worldrl.recipes.run import open_run
from worldrl.settings import one_or_more, required, setting

AFTER = Path("stages") / "05-after" / "evaluation"
"""Evaluation at the end of a run of ``train-vla``."""
WIDE = 100
"""Columns of a terminal from which the discordant pairs are shown; the file always has them."""


@dataclass
class CompareSettings:
    """Which evaluations; the result is about ``b`` relative to ``a``."""

    a: str = required(
        "run directory of the evaluation before, or '[a1,a2]', one for each training", made_by="worldrl evaluate"
    )
    b: str = required("run directory of the evaluation after, or as many", made_by="worldrl evaluate")
    run_dir: str = setting("runs/compare", "where the result is written")
    at_end: bool = setting(False, "compare success at the end of the episode instead of at some frame")


def main(settings: CompareSettings) -> dict[str, Any]:
    """Compare, write ``result.json`` and print the closing table.

    Returns the metrics of :meth:`~worldrl.evaluation.policy.compare.Comparison.metrics`, of several pairs those of
    :func:`~worldrl.evaluation.policy.compare.pooled`. Raises ProtocolError (two were measured under different
    protocols, or one is not finished).
    """
    before, after = (
        [finished(Path(text)) for text in one_or_more(side, getattr(settings, side))] for side in ("a", "b")
    )
    if len(before) != len(after):
        raise SettingError(f"a names {len(before)} evaluations and b {len(after)}; give as many, in the same order")
    pairs = [compare(a, b, at_end=settings.at_end) for a, b in zip(before, after, strict=True)]
    metrics = pairs[0].metrics() if len(pairs) == 1 else pooled(pairs)
    with open_run("compare", settings) as run:
        run.write_result(metrics, seed=before[0].protocol.seed, device="cpu", protocol_hash=before[0].protocol.hash)
    show(metrics) if len(pairs) == 1 else show_pooled(metrics)
    return metrics


def finished(path: Path) -> EvalResult:
    """Read an evaluation, or the one at the end of a run of ``train-vla``."""
    if (path / "stages").is_dir() and not (path / AFTER).is_dir():
        raise ArtefactError(f"{path}: this run of train-vla is not at its last evaluation; the same command resumes it")
    return EvalResult.load(path / AFTER if (path / AFTER).is_dir() else path)


def show(metrics: Mapping[str, Any]) -> None:
    """Print the closing table of one pair."""
    table = _table(f"{metrics['b']} (b) against {metrics['a']} (a) on the same episodes", "task")
    for task, entry in metrics["tasks"].items():
        _add_row(table, task, entry, f"{entry['p_holm']:.2g}")
    _add_row(table, "all", metrics, f"{metrics['paired']['p']:.2g}")
    table.caption = "p: exact McNemar; per task adjusted after Holm"
    console().print(table)
    _note(metrics["notes"], valid=metrics["valid"])


def show_pooled(metrics: Mapping[str, Any]) -> None:
    """Print the closing table of several pairs."""
    table = _table(f"b against a over {len(metrics['pairs'])} trainings of each, on the same episodes", "training")
    for number, entry in enumerate(metrics["pairs"], 1):
        _add_row(table, str(number), entry, f"{entry['paired']['p']:.2g}")
    _add_row(table, "all", metrics, f"{metrics['paired']['p']:.2g}")
    mean = metrics["trainings"]
    table.caption = (
        f"p: exact McNemar; mean over trainings {100 * mean['mean']:+.1f} "
        f"[{_points(mean['lo'])} … {_points(mean['hi'])}] (Student)"
    )
    console().print(table)
    _note(sorted({note for pair in metrics["pairs"] for note in pair["notes"]}), valid=metrics["valid"])


def _table(title: str, first: str) -> Table:
    table = Table(title=title)
    table.add_column(first, overflow="fold")
    only = ("only a", "only b") if _wide() else ()
    for heading in ("a", "b", *only, "b − a (%)", "95 %", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _wide() -> bool:
    """Whether there is room for the discordant pairs beside the names of tasks."""
    return console().width >= WIDE


def _note(notes: Sequence[str], *, valid: bool) -> None:
    for note in notes:
        console().print(f"note: measured differently: {note}", markup=False)
    if not valid:
        console().print("not valid: too many episodes of one evaluation were run again after a worker died")


def _add_row(table: Table, name: str, entry: Mapping[str, Any], p: str) -> None:
    before, after, pair = entry["before"], entry["after"], entry["paired"]
    only = (str(pair["only_a"]), str(pair["only_b"])) if _wide() else ()
    table.add_row(
        name,
        f"{before['k']}/{before['n']}",
        f"{after['k']}/{after['n']}",
        *only,
        f"{100 * pair['diff']:+.1f}",
        f"{_points(pair['lo'])} … {_points(pair['hi'])}",
        p,
    )


def _points(share: float) -> str:
    """A difference in whole points; never ``-0``."""
    return f"{100 * share:+.0f}" if round(100 * share) else "0"
