"""``worldrl report``: rebuild a run's ``report.html`` from what the run left, without weights or simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import console
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.store import from_run_dir
from worldrl.evaluation.report.terminal import show
from worldrl.evaluation.report.words import statement
from worldrl.settings import setting


@dataclass
class ReportSettings:
    """Settings of ``worldrl report``."""

    run_dir: str = setting("runs/train-vla", "the finished run to report on")
    seed: int = setting(0, "accepted as in all commands; a page draws no random numbers")
    output: str = setting("", "where the page goes; empty: report.html in run_dir")


def main(settings: ReportSettings) -> dict[str, Any]:
    """Write the page and print the closing table.

    Returns ``{"report": path, "verdict": kind, "statement": text, "bytes": size}``. Raises ArtefactError: if the run holds no readable report data, or the page cannot be written.
    """
    run_dir = Path(settings.run_dir)
    data = from_run_dir(run_dir)
    page = render(data).encode()
    path = Path(settings.output) if settings.output else run_dir / "report.html"
    write_file(path, page, error=ArtefactError)
    show(data, console())
    found = statement(data)
    return {"report": str(path), "verdict": found.kind, "statement": found.sentence, "bytes": len(page)}
