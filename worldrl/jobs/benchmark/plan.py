"""``worldrl benchmark plan.diff=0.05``: how many episodes a comparison needs, before any is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from worldrl.core.statistics.intervals import wilson
from worldrl.core.statistics.sequential import (
    LARGEST_TEST,
    discordant_share,
    paired_episodes,
    sequential_plan,
    unpaired_episodes,
)
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import console
from worldrl.evaluation.report.tables import csv_bytes, markdown
from worldrl.recipes.run import open_run
from worldrl.settings import fraction, non_negative, setting

if TYPE_CHECKING:
    from worldrl.jobs.benchmark.benchmark import BenchmarkSettings

RATES = (0.5, 0.7, 0.8, 0.9)
"""Rates of the weaker policy that are shown where none is expected."""


@dataclass
class BenchmarkPlan:
    """What a comparison shall show; ``diff`` alone asks for advice instead of a measurement."""

    diff: float | None = setting(
        None, "difference of two success rates to detect, 0.05 for five points; null runs the benchmark"
    )
    rate: float | None = setting(None, "expected rate of the weaker policy; null shows several")
    power: float = setting(0.8, "probability of detecting the difference where there is one")
    alpha: float = setting(0.05, "probability of claiming one where there is none (two-sided)")
    discordant: float | None = setting(
        None, "share of episodes that one policy alone solves; null: as if they succeeded independently, the worst case"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("power", "alpha"):
            fraction(f"plan.{name}", getattr(self, name))
        for name in ("diff", "rate", "discordant"):
            value = getattr(self, name)
            if value is not None:
                non_negative(f"plan.{name}", value)
                fraction(f"plan.{name}", value)


@dataclass(frozen=True)
class PlanRow:
    """Advice for one expected rate."""

    rate: float  # of the weaker policy.
    discordant: float  # share of episodes that one policy alone solves.
    paired: int  # episodes of each policy on the same initial states, exact McNemar.
    unpaired: int  # episodes of each policy on different initial states.
    half_width: float  # of the Wilson interval of either rate after ``paired`` episodes.
    # maximum of a sequential comparison of the same power; None beyond what it is calibrated for.
    sequential_max: int | None
    sequential_episodes: float | None  # mean number of episodes until it stops, where the difference is there.


def plan_rows(plan: BenchmarkPlan) -> list[PlanRow]:
    """One row per expected rate at which the difference is possible.

    Raises SettingError (the difference is not possible, or needs more episodes than anyone will run).
    """
    diff = float(plan.diff or 0.0)
    rates = [plan.rate] if plan.rate is not None else [rate for rate in RATES if rate + diff <= 1] or [1 - diff]
    return [_row(plan, rate, diff) for rate in rates]


def _row(plan: BenchmarkPlan, rate: float, diff: float) -> PlanRow:
    unpaired = unpaired_episodes(rate, diff, alpha=plan.alpha, power=plan.power)
    share = discordant_share(rate, diff) if plan.discordant is None else plan.discordant
    paired = paired_episodes(share, diff, alpha=plan.alpha, power=plan.power)
    interval = wilson(round(rate * paired), paired)
    # The sequential maximum is up to half as large again as the paired number.
    early = sequential_plan(share, diff, alpha=plan.alpha, power=plan.power) if 2 * paired <= LARGEST_TEST else None
    return PlanRow(
        rate,
        share,
        paired,
        unpaired,
        (interval["hi"] - interval["lo"]) / 2,
        early["n_max"] if early else None,
        early["episodes"] if early else None,
    )


def plan_metrics(plan: BenchmarkPlan, rows: Sequence[PlanRow]) -> dict[str, Any]:
    """What ``result.json`` holds."""
    return {"plan": asdict(plan), "rows": [asdict(row) for row in rows]}


def write_plan(folder: Path, plan: BenchmarkPlan, rows: Sequence[PlanRow]) -> None:
    """Write ``plan.csv`` and ``plan.md``."""
    write_file(folder / "plan.csv", csv_bytes(list(asdict(rows[0])), [list(asdict(row).values()) for row in rows]))
    write_file(folder / "plan.md", f"{title(plan)}\n\n{markdown(HEADINGS, map(cells, rows))}\n".encode())


HEADINGS = (
    "rate",
    "only one solves",
    "episodes, same states",
    "episodes, other states",
    "± at that",
    "sequential: maximum",
    "on average",
)


def title(plan: BenchmarkPlan) -> str:
    """What the table is about."""
    return (
        f"Episodes of each policy to show a difference of {100 * float(plan.diff or 0):g} points "
        f"with {100 * plan.power:g} % power at {100 * plan.alpha:g} %"
    )


def cells(row: PlanRow) -> list[str]:
    """One row as text."""
    most = "–" if row.sequential_max is None else f"{row.sequential_max}"
    mean = "–" if row.sequential_episodes is None else f"{row.sequential_episodes:.0f}"
    return [
        f"{100 * row.rate:.0f} %",
        f"{100 * row.discordant:.0f} %",
        f"{row.paired}",
        f"{row.unpaired}",
        f"{100 * row.half_width:.1f}",
        most,
        mean,
    ]


def show_plan(plan: BenchmarkPlan, rows: Sequence[PlanRow]) -> None:
    """Print the table."""
    table = Table(
        title=title(plan),
        caption="same states: exact McNemar on pairs; the sequential comparison (against=) stops when it is decided",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*cells(row))
    console().print(table)


def advise(settings: BenchmarkSettings) -> dict[str, Any]:
    """Say how many episodes a comparison needs; nothing is run."""
    rows = plan_rows(settings.plan)
    metrics = plan_metrics(settings.plan, rows)
    with open_run("benchmark", settings) as run:
        write_plan(run.path, settings.plan, rows)
        run.write_result(metrics, seed=settings.seed, device="cpu")
    show_plan(settings.plan, rows)
    return metrics
