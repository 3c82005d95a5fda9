"""What the report page of ``worldrl train-idm`` shows, and its closing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.storage.log import console
from worldrl.evaluation.report.model import Curve, Number, ReportData, Table
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import count, number, rounded, with_interval, with_rate
from worldrl.rewards.motion.acceptance import APART, LEAST_EXACT, MOST_SPOILT
from worldrl.rewards.motion.calibration import INTERVALS, Readings

PAGE = ("measurements", "curves", "notes", "configuration")
LOOKS = {"recorded": "frames as recorded", "restored": "frames as the world model's codec restores them"}
CURVES = 8
"""Columns of the drawn episode at most."""
LIMITS = (
    "Errors are of episodes that it has not learned from, of the same robot, camera and kind of motion; intervals are "
    "bootstrapped over episodes.",
    "Errors of some columns matter more than of others: only execution shows how good decoded motion is.",
)


@dataclass(frozen=True)
class IdmFindings:
    """What the page is made from."""

    metrics: Mapping[str, Any]  # as in ``result.json``.
    readings: Readings  # of the held-out episodes' recorded frames.
    dt: float  # seconds between the frames that were read.


def report_page(findings: IdmFindings, data: Sequence[str], *, seed: int, device: str) -> ReportData:
    """Gather what the page shows of a training on the datasets ``data``."""
    return ReportData(
        title=f"train-idm on {', '.join(data)}",
        sentence=sentence(findings),
        sections=PAGE,
        headline=headline(findings),
        tables=tables(findings),
        curves=curves(findings),
        seeds=[seed],
        provenance={"device": device},
        notes=LIMITS,
    )


def sentence(findings: IdmFindings) -> str:
    """What was found, in one statement made of numbers alone."""
    metrics = findings.metrics
    parts = [f"{with_interval(found['median'])} {unit}" for unit, found in metrics["by_unit"]["recorded"].items()]
    errors = " and ".join(parts) or "listed column by column below"
    executed = metrics["executed"]
    again = f" Executed decodes succeed in {with_rate(executed['decoded'])}." if executed else ""
    return f"Median error on {count(metrics['episodes']['held_out'], 'held-out episode')}: {errors}.{again}"


def headline(findings: IdmFindings) -> list[Number]:
    """The numbers of the first screen."""
    metrics = findings.metrics
    tiles = [
        Number(f"Median error, {LOOKS[look]}", rounded(found["median"]["value"]), unit)
        for look, units in metrics["by_unit"].items()
        for unit, found in units.items()
    ]
    scores = metrics["acceptance"]["scores"]
    probe = Number("Acceptance probe", "passed" if metrics["acceptance"]["accepted"] else "failed", note=_named(scores))
    if not metrics["executed"]:
        return [*tiles, probe]
    return [*tiles, Number("Executed decodes that succeed", with_rate(metrics["executed"]["decoded"])), probe]


def tables(findings: IdmFindings) -> list[Table]:
    """Every number with its interval."""
    metrics = findings.metrics
    found = [error_table(look, rows) for look, rows in metrics["errors"].items()]
    if metrics["noise_floor"]:
        found.append(floor_table(metrics["noise_floor"]))
    found.append(acceptance_table(metrics["acceptance"]))
    if metrics["executed"]:
        found.append(execution_table(metrics["executed"]))
    if metrics["foresight"]:
        found.append(foresight_table(metrics["foresight"]))
    if metrics["grasp"]:
        rows = [(name, with_interval(value)) for name, value in metrics["grasp"].items()]
        found.append(Table("Closing of the hand", ("Commanded", "Median error"), rows, GRASP_NOTE))
    return found


GRASP_NOTE = "Where the hand closes, read from the first frames of held-out successes, beside the commanded place."


def foresight_table(metrics: Mapping[str, Mapping[str, float]]) -> Table:
    """MIND-V's reward with its guard against stillness, and as published."""
    guarded, published = metrics["moving_foresight"], metrics["physical_foresight"]
    rows = [(name, f"{guarded[name]:.3f}", f"{published[name]:.3f}") for name in guarded]
    note = "Medians over held-out clips. How well either knows the success of executed plans is not measured here: align-world-model executed_plans=N."
    return Table("Physical foresight", ("Videos", "Times motion", "As published"), rows, note)


def error_table(look: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Errors and coverage of each column."""
    cells = [
        (
            row["column"],
            row["unit"] or "of its range",
            *(with_interval(row[name]) for name in ("median", "p90")),
            f"{row['guess']:.3g}",
            *(with_interval(row["coverage"][share]) for share in INTERVALS),
        )
        for row in rows
    ]
    shares = [f"Within the {100 * float(share):.0f} % interval" for share in INTERVALS]
    headers = ("Column", "Unit", "Median error", "90th percentile", "Error of a guess", *shares)
    note = "Absolute error with 95 % intervals; a guess always answers with the median. Coverage of the predicted intervals."
    return Table(f"Errors, {LOOKS[look]}", headers, cells, note)


def floor_table(floor: Mapping[str, Any]) -> Table:
    """What the motion rewards say of real, still and recorded motion."""
    rows = [(name, *map(number, values.values())) for name, values in floor["medians"].items()]
    note = (
        f"Medians over {count(floor['clips'], 'held-out clip')}. P0 re-fitted to {floor['p0']:.4g}: the reward is highest / √2 "
        "where a decode is as rough as that of a real video."
    )
    return Table("Noise floor", ("Measure", "Decoded real", "Decoded still", "Recorded motion"), rows, note)


def execution_table(executed: Mapping[str, Any]) -> Table:
    """How many episodes succeed again when what their frames show is executed."""
    sources = [name for name in executed if name != "tasks"]
    rows = [(name, *(with_rate(rates[source]) for source in sources)) for name, rates in executed["tasks"].items()]
    rows.append(("all", *(with_rate(executed[source]) for source in sources)))
    note = "Held-out successes, open loop from their initial states. Commanded: the true commands at the same frames."
    return Table("Executed decodes", ("Task", *map(str.capitalize, sources)), rows, note)


def acceptance_table(found: Mapping[str, Any]) -> Table:
    """The acceptance probe of the action-similarity reward."""
    needs = {"exact": f"at least {LEAST_EXACT}"}
    rows = [
        (name.replace("_", " "), f"{value:.3f}", needs.get(name, f"at most {MOST_SPOILT}"))
        for name, value in found["scores"].items()
    ]
    apart = round(found["apart"], 2) + 0.0  # no -0
    rows.append(("exact over wrong action, in deviations", f"{apart:.2f}", f"more than {APART}"))
    return Table("Acceptance probe", ("Videos", "Action similarity", "Needs"), rows, _verdict(found))


def curves(findings: IdmFindings) -> list[Curve]:
    """One held-out episode, read beside recorded, with the predicted 90 % interval."""
    readings = findings.readings
    longest = int(np.argmax([len(true) for true in readings.true]))
    true, mean, std = readings.true[longest], readings.mean[longest], INTERVALS["0.9"] * readings.std[longest]
    seconds = findings.dt * np.arange(len(true))
    return [
        Curve(
            title=f"{column.label} in a held-out episode",
            x_label="seconds",
            y_label=column.unit or column.label,
            series={"recorded": _points(seconds, true[:, d]), "decoded": _points(seconds, mean[:, d])},
            bands={
                "decoded": [
                    (float(s), float(m - w), float(m + w))
                    for s, m, w in zip(seconds, mean[:, d], std[:, d], strict=True)
                ]
            },
        )
        for d, column in enumerate(readings.columns[:CURVES])
    ]


def show(findings: IdmFindings, run_dir: Path) -> None:
    """Print the closing table."""
    print_table(tables(findings)[0], console(), range(6))
    console().print(f"{sentence(findings)}\nreport: {run_dir / 'report.html'}")


def _points(x: Any, y: Any) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def _named(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in scores.items())


def _verdict(found: Mapping[str, Any]) -> str:
    verdict = "fit to be climbed" if found["accepted"] else "not suited for optimisation"
    return f"The action-similarity reward on real pairs of video and command and on spoilt ones: {verdict}."
