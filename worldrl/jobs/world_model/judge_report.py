"""The page of ``worldrl judge``, the rows of its card, and its closing table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.storage.log import console
from worldrl.evaluation.report.card import FILE
from worldrl.evaluation.report.model import Curve, Filmstrip, Number, ReportData, Table
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import count, tile, with_interval, with_rate
from worldrl.evaluation.world_model.battery import Drift
from worldrl.evaluation.world_model.film_pairs import FilmMeasures, reported, shown_frames
from worldrl.evaluation.world_model.rollout_error import psnr
from worldrl.jobs.world_model.report import chart
from worldrl.recipes.world_model.tables import QUANTITY, clips_said, named

PAGE = ("measurements", "curves", "filmstrips", "notes", "configuration")
STRIPS = 3
"""Filmstrips each of the worst and of the best pairs."""
TESTS = {
    "psnr": ("similarity over all measured frames (dB)", "PSNR of the mean squared error"),
    "psnr_over_still": (
        "gain over the last given frame, repeated (dB)",
        "0 or less: showing no motion at all would be as close",
    ),
    "motion_ratio": ("motion, as a share of the real one", "below 1: films that stand still; above 1: flicker"),
    "detail_ratio": ("detail, as a share of the real one", "below 1: blurred images"),
    "static_psnr": ("similarity where the real film stands still (dB)", "low where the background moves or fades"),
    "fvd": ("Fréchet video distance", ""),
}
"""Number of the whole film → its meaning, and how to read it."""
RATES = {
    "outcome_alignment": "films whose outcome is the real one",
    "precision": "generated successes that are real",
    "recall": "real successes that are generated",
    "false_success_rate": "real failures that are generated as successes (false positives)",
}
NOTES = (
    "Films are compared frame by frame, after the frames that the model was given.",
    "Intervals are 95 % and over pairs of films: with few pairs they are too narrow.",
    "A generated film may differ from the real one and still be plausible: these numbers ask for the same film.",
)


@dataclass(frozen=True)
class FilmFindings:
    """What the page is made from."""

    metrics: Mapping[str, Any]  # as in `result.json`
    measures: FilmMeasures
    drift: Mapping[str, Drift]

    @property
    def curves(self) -> dict[str, Drift]:
        """Numbers of each frame that are of the model."""
        return {name: curve for name, curve in self.drift.items() if name in QUANTITY}


def report_page(findings: FilmFindings, *, seed: int, device: str) -> ReportData:
    """Gather what the page shows."""
    metrics = findings.metrics
    return ReportData(
        title=f"{count(metrics['pairs'], 'generated film')} beside the real ones",
        sentence=sentence(metrics),
        sections=PAGE,
        headline=headline(metrics),
        tables=tables(findings),
        curves=charts(findings),
        filmstrips=filmstrips(findings),
        seeds=[seed],
        provenance={name: f"{metrics[name]['path']} ({metrics[name]['hash'][:16]})" for name in ("real", "generated")}
        | {"device": device},
        notes=NOTES,
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """What was found, in statements of one number each."""
    last = metrics["frames"]
    return (
        f"After {count(last, 'frame')} generated images are at {with_interval(metrics[f'psnr@{last}'])} dB. Their gain over "
        f"the last given frame, repeated, is {with_interval(metrics['psnr_over_still'])} dB over all frames."
    )


def headline(metrics: Mapping[str, Any]) -> list[Number]:
    """The numbers of the first screen."""
    names = {
        "psnr": "PSNR",
        "psnr_over_still": "Gain over a still image",
        "motion_ratio": "Motion",
        "detail_ratio": "Detail",
    }
    tiles = [tile(names[name], metrics[name], "dB" if name.startswith("psnr") else "") for name in names]
    return [Number("Pairs of films", metrics["pairs"]), *tiles]


def card_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every number of a card with its interval, by its meaning."""
    frames = [
        (f"{named(*QUANTITY[name])} after {count(frame, 'frame')}", metrics[f"{name}@{frame}"])
        for name in ("psnr", "ssim", "lpips")
        for frame in reported(metrics["frames"])
        if f"{name}@{frame}" in metrics
    ]
    tests = [(meaning, metrics[name]) for name, (meaning, _) in TESTS.items() if name in metrics]
    rows = [(meaning, f"{with_interval(found)}, n = {found['n']}") for meaning, found in (*frames, *tests)]
    return [*rows, *((meaning, with_rate(metrics[name])) for name, meaning in RATES.items() if name in metrics)]


def tables(findings: FilmFindings) -> list[Table]:
    """Every number with its interval."""
    metrics = findings.metrics
    shown = {**findings.curves, "still": findings.drift["still"]}
    headers = [named(*QUANTITY[name]) for name in findings.curves]
    drift = [
        (count(frame, "frame"), *(with_interval(curve.at(frame)) for curve in shown.values()))
        for frame in reported(metrics["frames"])
    ]
    words = {
        **{name: words for name, (_, words) in TESTS.items()},
        "fvd": clips_said(metrics["fvd"]) if "fvd" in metrics else "",
    }
    tests = [
        (meaning, with_interval(metrics[name]), words[name]) for name, (meaning, _) in TESTS.items() if name in metrics
    ]
    outcomes = [(meaning, with_rate(metrics[name])) for name, meaning in RATES.items() if name in metrics]
    return [
        Table("Over time", ("After", *headers, "Last given frame repeated, PSNR (dB)"), drift),
        Table("Whole films", ("Number", "Measured", "How to read it"), tests),
        *([Table("Outcomes", ("Share", "Measured"), outcomes)] if outcomes else []),
        Table("Not measured", ("Number", "Why"), list(metrics["not_computed"].items())),
    ]


def charts(findings: FilmFindings) -> list[Curve]:
    """One chart for each number of a frame; beside PSNR stands the last given frame repeated."""
    beside = {"psnr": {"last given frame repeated": findings.drift["still"]}}
    return [
        chart(*QUANTITY[name], {"generated": curve, **beside.get(name, {})}, over="frame")
        for name, curve in findings.curves.items()
    ]


def filmstrips(findings: FilmFindings) -> list[Filmstrip]:
    """The worst pairs and the best ones, real above generated."""
    error = findings.measures.error.mean(axis=1)
    order = np.argsort(error).tolist()
    worst = order[::-1][: min(STRIPS, len(order))]
    best = [row for row in order[:STRIPS] if row not in worst]
    return [
        *(_strip(findings, row, f"Worst {place}") for place, row in enumerate(worst, 1)),
        *(_strip(findings, row, f"Best {place}") for place, row in enumerate(best, 1)),
    ]


def _strip(findings: FilmFindings, row: int, place: str) -> Filmstrip:
    measures = findings.measures
    frames: list[int] = shown_frames(measures.error.shape[1]).tolist()
    return Filmstrip(
        f"{place}: {measures.name[row]}",
        f"{psnr(float(measures.error[row].mean())):.1f} dB over all frames.",
        {"real": measures.real[row], "generated": measures.generated[row]},
        [f"frame {frame + 1}" for frame in frames],
    )


def show(findings: FilmFindings, run_dir: Path) -> None:
    """Print the closing tables."""
    for given in tables(findings):
        print_table(given, console())
    for line in (sentence(findings.metrics), f"report: {run_dir / 'report.html'}", f"card: {run_dir / FILE}"):
        console().print(line, markup=False, soft_wrap=True)
