"""The table of ``worldrl benchmark-offline`` as CSV, Markdown, page and closing table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import console
from worldrl.evaluation.offline.table import SCALES, OfflineRun
from worldrl.evaluation.report.checks import is_number
from worldrl.evaluation.report.model import Number, ReportData, Table
from worldrl.evaluation.report.tables import csv_bytes, markdown, print_table
from worldrl.evaluation.report.words import count, number

PAGE = ("measurements", "notes", "configuration")
COLUMNS = (
    "data",
    "algorithm",
    "seed",
    *SCALES,
    "data_return",
    "over_estimation",
    "updates",
    "episodes",
    "steps",
    "wall_s",
)
HEADINGS = ("data", "algorithm", "seeds", "return", "D4RL score", "dataset score", "promised − earned", "return − the data's",
            "episodes (steps) played")  # fmt: skip
SHOWN = 6
"""Columns of the first table that a terminal shows; the files have all."""
NOTES = (
    "Values of rows are interquartile means over seeds; brackets hold 95 % intervals from drawing seeds again within each dataset. With "
    "fewer than four seeds the interquartile mean is the mean, and with fewer than six the interval is narrower than it says. No verdict "
    "rests on these.",
    "A difference is the mean of the differences between runs of the same seed, with Student's 95 % interval. It is better or worse where "
    "the interval lies beside zero, which happens by chance in one of twenty comparisons of equals; within the interval where that holds "
    "zero: then nothing was shown; and open with a single common seed. Verdicts are not corrected for how many there are.",
    "Scores are 0 for a random policy and 100 for an expert: with D4RL's constants, which were measured in other versions of the "
    "environments, and with the dataset's own.",
    "Promised − earned is the critic's value of the first states minus the discounted return that followed.",
    "The best rival is chosen by its own result, which favours it a little.",
    "Episodes and steps are those of the real environment that all runs of a row used for evaluation.",
)


def write_tables(folder: Path, metrics: Mapping[str, Any], runs: Sequence[OfflineRun]) -> None:
    """Write ``runs.csv``, a line per run, and ``results.md``, the tables."""
    write_file(folder / "runs.csv", csv_bytes(COLUMNS, map(_line, runs)))
    parts = [f"## {table.title}\n\n{markdown(table.headers, table.rows)}" for table in tables(metrics)]
    write_file(folder / "results.md", ("\n\n".join([*parts, "\n".join(f"- {note}" for note in NOTES)]) + "\n").encode())


def _line(run: OfflineRun) -> list[Any]:
    scores = [run.scores.get(scale) for scale in SCALES]
    played = [run.budget["episodes"], run.budget["steps"]]
    return [
        run.data,
        run.algorithm,
        run.seed,
        *scores,
        run.data_return,
        run.over_estimation,
        run.updates,
        *played,
        run.wall_s,
    ]


def tables(metrics: Mapping[str, Any]) -> list[Table]:
    """Lay the metrics out: algorithms on datasets, algorithms over all datasets, comparisons."""
    found = [Table("Algorithms on datasets", HEADINGS, [_row(row) for row in metrics["rows"]])]
    if metrics["overall"]:
        cells = [
            [row["algorithm"], *(bracketed(row["scores"].get(scale)) for scale in SCALES[1:])]
            for row in metrics["overall"]
        ]
        found.append(Table("Over all datasets", ("algorithm", "D4RL score", "dataset score"), cells))
    if metrics["comparisons"]:
        headings = ("data", "algorithm", "than", "scale", "difference", "verdict")
        cells = [
            [*(one[key] for key in headings[:4]), bracketed(one["difference"]), one["verdict"]]
            for one in metrics["comparisons"]
        ]
        found.append(Table("Who is better", headings, cells))
    return found


def _row(row: Mapping[str, Any]) -> list[str]:
    return [
        row["data"],
        row["algorithm"],
        str(len(row["seeds"])),
        *(bracketed(row["scores"].get(scale)) for scale in SCALES),
        bracketed(row["over_estimation"]),
        bracketed(row["less_data"]),
        f"{row['budget']['episodes']} ({row['budget']['steps']})",
    ]


def bracketed(found: Mapping[str, Any] | None) -> str:
    """Write a value with its interval; a single seed has none, and what was not measured is empty."""
    if found is None or not is_number(found["value"]):
        return ""
    known = is_number(found["lo"]) and is_number(found["hi"])
    interval = f" [{number(found['lo'])}, {number(found['hi'])}]" if known else ""
    return f"{number(found['value'])}{interval}"


def sentence(metrics: Mapping[str, Any]) -> str:
    """Say what the comparisons came to, in numbers alone."""
    rows, found = metrics["rows"], metrics["comparisons"]
    counts = {one["verdict"]: sum(other["verdict"] == one["verdict"] for other in found) for one in found}
    counted = ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"
    seeds = max(len(row["seeds"]) for row in rows)
    datasets = len({row["data"] for row in rows})
    names = len({row["algorithm"] for row in rows})
    sizes = f"{count(names, 'algorithm')} on {count(datasets, 'dataset')}, up to {count(seeds, 'seed')} each"
    return f"Of {count(len(found), 'comparison')} of {sizes}: {counted}." if found else f"No comparison: {sizes}."


def report_page(metrics: Mapping[str, Any]) -> ReportData:
    """Gather what the page shows."""
    errors = [f"Stopped with an error: {label}: {error}" for label, error in metrics["errors"].items()]
    return ReportData(
        title="benchmark-offline",
        sentence=sentence(metrics),
        sections=PAGE,
        headline=[
            Number(
                f"{one['algorithm']} − {one['than']} ({one['scale']} {'return' if one['scale'] == 'raw' else 'score'})",
                bracketed(one["difference"]),
                note=f"{one['data']}: {one['verdict']}",
            )
            for one in metrics["comparisons"]
            if one["than"] != metrics["clone"]
        ],
        tables=tables(metrics),
        seeds=sorted({seed for row in metrics["rows"] for seed in row["seeds"]}),
        notes=[*NOTES, *errors],
    )


def show(metrics: Mapping[str, Any]) -> None:
    """Print the tables, of the first one what fits a terminal: names and scores."""
    for place, part in enumerate(tables(metrics)):
        print_table(part, console(), () if place else range(SHOWN))
