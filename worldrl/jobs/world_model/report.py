"""What the report page of ``worldrl evaluate-world-model`` shows, and its closing table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.storage.log import console
from worldrl.evaluation.report.model import Curve, Filmstrip, ImaginedReal, Number, ReportData
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import count, interval, percent, tile
from worldrl.evaluation.world_model.battery import Drift
from worldrl.evaluation.world_model.measures import image_frames
from worldrl.evaluation.world_model.rollout_error import psnr
from worldrl.recipes.world_model.tables import QUANTITY, Findings, clips_said, tables
from worldrl.rollout.real.execution import HOLD_STEPS

PAGE = ("measurements", "imagined", "curves", "filmstrips", "notes", "configuration")
CHARTS = (
    "psnr", "view_psnr", "ssim", "lpips", "state_cm", "state_deg", "state_error",
    "probe_error_cm", "probe_across_cm", "views_apart_cm",
)  # fmt: skip
TERMINAL = ("psnr", "view_psnr", "ssim", "state_cm", "probe_error_cm", "views_apart_cm")
"""Drifts that the closing table shows; the page has all."""
CONTINUATIONS = {
    "retrace": "the arm holds still for {hold} steps, retraces its path to where it began, executes the recorded actions of "
    "another episode of the task, and so on: commanded poses are those of recordings, but letting go of a held object on "
    "the way back is in no recording of a picking task",
    "hold": "the arm holds still",
}
LIMITS = (
    "Every frame called real is rendered by the simulator, which executes the same actions from the same initial state.",
    "Intervals of numbers that are not rates are bootstrapped over episodes: with few episodes they are too narrow.",
    "The probe errs too: read position errors beside its errors on real frames. Blurred images may mislead it further. "
    "One image shows little along the line of sight; the error across it is therefore given as well.",
)


def report_page(findings: Findings, *, seed: int, device: str) -> ReportData:
    """Gather what the page shows."""
    metrics = findings.metrics
    return ReportData(
        title=f"evaluate-world-model on {', '.join(metrics['tasks'])}",
        sentence=sentence(findings),
        sections=[key for key in PAGE if key != "imagined" or "policies" in metrics],
        headline=headline(findings),
        tables=tables(findings),
        curves=curves(findings.drift),
        filmstrips=filmstrips(findings),
        imagined_real=[ImaginedReal(one["path"], one["imagined"], one["real"]) for one in metrics.get("policies", ())],
        seeds=[seed],
        provenance={
            "world model": f"{metrics['world_model']['path']} ({metrics['world_model']['hash'][:16]})",
            "episodes": f"{', '.join(metrics['data']['path'])} ({metrics['data']['hash'][:16]})",
            "device": f"{device}, {metrics['dtype']}",
        },
        notes=notes(findings),
    )


# --- the first screen -----------------------------------------------------------------------------------------------


def sentence(findings: Findings) -> str:
    """What was found, in one statement made of numbers alone."""
    metrics, steps = findings.metrics, findings.headline
    outcome, episode = metrics["outcome_alignment"], "unseen episode" if metrics["seen"]["known"] else "episode"
    read, own = (metrics.get(f"probe_error_cm{which}@{steps}") for which in ("", "_real"))
    positions = (
        f" and positions in them {read['value']:.2g} cm off ({own['value']:.2g} in real ones)" if read and own else ""
    )
    return (
        f"Outcome predicted correctly in {percent(outcome['rate'])} of {count(outcome['n'], episode)} (95 % interval "
        f"{interval(outcome)}); after {steps} control steps imagined images are at "
        f"{metrics[f'closed_loop.psnr@{steps}']['value']:.1f} dB{positions}."
    )


def headline(findings: Findings) -> list[Number]:
    """The numbers of the first screen."""
    metrics, steps = findings.metrics, findings.headline
    numbers = [
        tile(f"{QUANTITY[name][0]} at {steps} steps", findings.drift[name].at(steps), QUANTITY[name][1])
        for name in CHARTS
        if name in findings.drift
    ]
    rows, speed = list(metrics["imagined_frames_per_s"].items())[-1]
    return [
        *numbers,
        tile("Action-swap ratio", metrics["action_swap_ratio"]),
        tile("Static test", metrics["static_psnr"], "dB"),
        *([tile("Fréchet video distance", metrics["fvd"])] if "fvd" in metrics else []),
        Number(
            "Imagined frames per second", round(speed["decoded"]), note=f"{count(int(rows), 'row')} at once, decoded"
        ),
        Number("Peak memory", round(metrics["peak_rss_mb"]), "MB"),
        *_device_memory(metrics["peak_device_mb"]),
    ]


def _device_memory(peak: float | None) -> list[Number]:
    return [] if peak is None else [Number("Peak memory of the GPU", round(peak), "MB")]


# --- images -------------------------------------------------------------------------------------------------------


def curves(drift: Mapping[str, Drift]) -> list[Curve]:
    """One chart per quantity; the probe's own error beside what it reads in imagined frames."""
    found = []
    for name in CHARTS:
        if name in drift:
            own = {"real frames": drift[f"{name}_real"]} if f"{name}_real" in drift else {}
            found.append(chart(*QUANTITY[name], {"imagined": drift[name], **own}))
    return found


def chart(title: str, unit: str, shown: Mapping[str, Drift], *, over: str = "control step") -> Curve:
    """Draw numbers over time with their intervals; the first of ``shown`` is of the world model."""
    series = {name: list(zip(d.step.tolist(), d.value.tolist(), strict=True)) for name, d in shown.items()}
    bands = {name: list(zip(d.step.tolist(), d.lo.tolist(), d.hi.tolist(), strict=True)) for name, d in shown.items()}
    return Curve(f"{title} over {over}s", over, unit or title, series, bands, imagined=(next(iter(shown)),))


def filmstrips(findings: Findings) -> list[Filmstrip]:
    """The worst episodes, the best ones, and the false successes, real above imagined."""
    measures, most = findings.measures, findings.strips
    error = measures.error.mean(axis=1)
    order = np.argsort(error)
    false = np.flatnonzero(measures.predicted & ~measures.actual)
    return [
        *(_whole_strip(findings, int(row), f"Worst {place}") for place, row in enumerate(order[::-1][:most], 1)),
        *(_whole_strip(findings, int(row), f"Best {place}") for place, row in enumerate(order[:most], 1)),
        *(_outcome_strip(findings, int(row), f"False success {place}") for place, row in enumerate(false[:most], 1)),
    ]


def _whole_strip(findings: Findings, row: int, name: str) -> Filmstrip:
    measures = findings.measures
    caption = (
        f"{psnr(float(measures.error[row].mean())):.1f} dB over all frames; recorded until step "
        f"{measures.recorded[row]}, then continued."
    )
    rows = {"real": measures.real[row], "imagined": measures.imagined[row]}
    labels = _labels(measures.error.shape[1], findings.frame_stride)
    return Filmstrip(f"{name}: {measures.name[row]}", caption, rows, labels)


def _outcome_strip(findings: Findings, row: int, name: str) -> Filmstrip:
    measures = findings.measures
    rows = {"real": measures.real_outcome[row], "imagined": measures.imagined_outcome[row]}
    frames = int(measures.recorded[row] + HOLD_STEPS) // findings.frame_stride
    caption = "Imagined to succeed; the same actions fail in the simulator."
    return Filmstrip(f"{name}: {measures.name[row]}", caption, rows, _labels(frames, findings.frame_stride))


def _labels(frames: int, stride: int) -> list[str]:
    at: NDArray[np.int64] = image_frames(frames)
    return [f"step {stride * (frame + 1)}" for frame in at.tolist()]


def notes(findings: Findings) -> list[str]:
    """How the horizons were reached, what was not computed, and limits."""
    metrics = findings.metrics
    continuation = metrics["continuation"]
    how = CONTINUATIONS[continuation["kind"]].format(hold=continuation["hold_steps"])
    missing = [
        f"Not computed: {name}. {reason[0].upper()}{reason[1:]}." for name, reason in metrics["not_computed"].items()
    ]
    clips = [f"Fréchet video distance: {clips_said(metrics['fvd'])}."] if "fvd" in metrics else []
    return [
        f"Horizon continuation: beyond its recorded actions {how}.",
        unseen(metrics["seen"]),
        *LIMITS,
        *clips,
        *missing,
    ]


def unseen(seen: Mapping[str, Any]) -> str:
    """Say how well it is known that the evaluated episodes are unseen."""
    if seen["known"]:
        return f"None of these episodes, in any visual style, is among the {seen['episodes']} that the world model or its earlier weights learned from."
    return (
        f"Whether all of these episodes are unseen is unknown: the world model, or weights that it began with, does not say "
        f"all that it learned from. They are not in what it does say ({count(seen['datasets'], 'parent')}, "
        f"{count(seen['episodes'], 'episode')})."
    )


# --- the terminal ---------------------------------------------------------------------------------------------------


def show(findings: Findings, run_dir: Path) -> None:
    """Print the closing tables."""
    closed_loop, tests, outcomes = tables(findings)[:3]
    drifts = [place for place, name in enumerate(findings.drift, 1) if name in TERMINAL]
    for given, kept in ((closed_loop, (0, *drifts)), (tests, (0, 1)), (outcomes, (0, 5, 6, 7, 9))):
        print_table(given, console(), kept)
    if "fvd" in findings.metrics:
        console().print(f"Fréchet video distance: {clips_said(findings.metrics['fvd'])}", markup=False)
    if not findings.metrics["seen"]["known"]:
        console().print(unseen(findings.metrics["seen"]), markup=False)
    console().print(f"{sentence(findings)}\nreport: {run_dir / 'report.html'}")
