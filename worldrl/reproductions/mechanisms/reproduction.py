"""``wovr``, ``sword``, ``world-vla-loop``: what each mechanism of a paper is worth, by itself.

Arms of the loop are runs of ``train-vla`` from the same demonstrations, supervised policy and initial states. Arms of a
world model learn its dynamics from nothing, on the same recordings. Each differs from ``default`` or ``world`` in one
mechanism. A claim is the difference for each seed, signed so that the paper expects it above zero.
"""

from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.statistics.intervals import paired, wilson
from worldrl.evaluation.report.model import Curve, Table
from worldrl.evaluation.report.words import number
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Findings, Results, column, side_by_side
from worldrl.reproductions.mechanisms.arms import DEFAULT, OUTCOMES, PSNR, QUANTITY, WORLD, LoopArm, WorldArm
from worldrl.reproductions.mechanisms.commands import default_run, loop_run, success, world_run
from worldrl.reproductions.mechanisms.settings import MechanismSettings

NOTES = (
    "Intervals in the table of the loop are over all seeds' episodes; the verdicts are over seeds.",
    "Each arm is one run of the commands that its stage's folder holds.",
)
LOOP_HEAD = ("Arm", "Real success", "Less default, points", "Episodes", "Confirmed")
WORLD_HEAD = ("Arm", "PSNR (dB), mean of seeds", "Outcomes predicted correctly, mean of seeds")


def run(settings: MechanismSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Run one arm with one seed."""
    if cell.method == DEFAULT:
        return success(default_run(settings, cell.seed, folder))
    arm = WorldArm(WORLD, "") if cell.method == WORLD else settings.names[cell.method]
    if isinstance(arm, LoopArm):
        return success(loop_run(settings, cell.seed, arm, folder))
    return world_run(settings, cell.seed, arm, folder)


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: MechanismSettings, results: Results) -> Findings:
    """Compare the arms, seed by seed."""
    chosen = [settings.names[name] for name in settings.asked]
    tables = [table for table in (loop_table(results), world_table(results)) if table.rows]
    return Findings([claim(settings, results, arm) for arm in chosen], tables, figures(results), NOTES)


def claim(settings: MechanismSettings, results: Results, arm: LoopArm | WorldArm) -> Claim:
    """Return the paper's statement about one mechanism."""
    sign = -1 if arm.without else 1
    if isinstance(arm, LoopArm):
        values = column(results, arm.name, "success") - column(results, DEFAULT, "success")
        return Claim(arm.statement, "real success, difference", sign * values)
    values = column(results, arm.name, arm.measure) - column(results, WORLD, arm.measure)
    return Claim(arm.statement, QUANTITY[arm.measure].format(horizon=settings.horizon), sign * values)


def pooled(results: Results, name: str) -> list[bool]:
    """Outcomes of all seeds' episodes, in order."""
    return [hit for found in results[name] for hit in found["hits"]]


def loop_table(results: Results) -> Table:
    """Real success of the arms of the loop, and the paired difference over all seeds' episodes."""
    rows = list[tuple[str, ...]]()
    for name in (name for name, found in results.items() if "hits" in found[0]):
        hits = pooled(results, name)
        counted = [sum(found["confirmed"][k] for found in results[name]) for k in (0, 1)]
        pair = paired(pooled(results, DEFAULT), hits)
        less = "" if name == DEFAULT else _interval(100 * pair["diff"], 100 * pair["lo"], 100 * pair["hi"])
        confirmed = _rate(*counted) if counted[1] else "none imagined"
        rows.append((name, _rate(sum(hits), len(hits)), less, str(len(hits)), confirmed))
    return Table("The loop", LOOP_HEAD, rows)


def world_table(results: Results) -> Table:
    """What the arms of a world model carry."""
    rows = [
        (name, *(number(float(column(results, name, what).mean())) for what in (PSNR, OUTCOMES)))
        for name, found in results.items()
        if PSNR in found[0]
    ]
    return Table("World models", WORLD_HEAD, rows)


def figures(results: Results) -> list[Curve]:
    """Real success, and the images of world models, arm by arm."""
    drawn = list[Curve]()
    for title, what, percent in (("Real success", "success", True), ("Closed-loop images", PSNR, False)):
        names = [name for name, found in results.items() if what in found[0]]
        if names:
            rows = np.stack([column(results, name, what) for name in names], axis=1).tolist()
            drawn.append(
                side_by_side(title, "PSNR (dB)" if what == PSNR else what, names, {what: rows}, percent=percent)
            )
    return drawn


def _rate(k: int, n: int) -> str:
    found = wilson(k, n)
    return _interval(100 * found["rate"], 100 * found["lo"], 100 * found["hi"]) + " %"


def _interval(value: float, lo: float, hi: float) -> str:
    return f"{value:.1f} [{lo:.1f}, {hi:.1f}]"
