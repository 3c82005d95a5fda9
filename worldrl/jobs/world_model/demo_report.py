"""The page of ``worldrl demo``: the policy alone and with planning, paired, and films of imagination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldrl.evaluation.report.model import Number, ReportData, Table
from worldrl.evaluation.report.words import (
    NBSP,
    gain_interval,
    gain_kind,
    interval,
    p_value,
    percent,
    points,
    with_rate,
)
from worldrl.recipes.world_model.replayed_films import Replayed

SECTIONS = ("measurements", "videos", "filmstrips", "notes", "configuration")
FEW = 100
"""Episodes below which a result is called small."""
MORE = "worldrl demo episodes=100 measures 300 episodes, which takes about ten minutes on one core."
NOTES = (
    "Success is MuJoCo's alone. Both ways of acting are measured on the same initial states, so that each episode is a pair.",
    "Films: on the left MuJoCo, on the right what the world model imagines for the same actions, from the first frame. A title "
    "gives the outcome in both.",
    "With planning, the world model imagines rollouts of the policy before each chunk, and the best one is executed. Nothing is "
    "trained.",
)


def report_page(metrics: Mapping[str, Any], films: Replayed, *, seed: int) -> ReportData:
    """Gather what the page shows from the metrics of the demo."""
    return ReportData(
        title="demo: a policy that plans in a world model",
        sentence=sentence(metrics),
        sections=SECTIONS,
        headline=headline(metrics),
        tables=[success_table(metrics)],
        filmstrips=films.filmstrips(),
        videos=films.videos(),
        seeds=[seed],
        notes=(*NOTES, *small(metrics)),
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """What was found, with its uncertainty, in one or two statements."""
    before, after, paired = metrics["before"], metrics["after"], metrics["paired"]
    found = {"gain": "a gain", "loss": "a loss"}.get(gain_kind(paired), "no difference shown")
    return (
        f"Alone the policy succeeded in {before['k']} of {before['n']} episodes, with planning in {after['k']}: {found} "
        f"({points(paired['diff'])} points, 95{NBSP}% interval {gain_interval(paired)})."
    ) + ("" if paired["n"] >= FEW else f" {paired['n']} episodes are few.")


def small(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Say how to measure more where the episodes are few."""
    return (MORE,) if metrics["paired"]["n"] < FEW else ()


def headline(metrics: Mapping[str, Any]) -> list[Number]:
    """Both rates, their paired difference, and the cost of planning."""
    before, after, paired = metrics["before"], metrics["after"], metrics["paired"]
    rates = [
        Number(
            name, percent(rate["rate"], 0), "", note=f"{rate['k']} of {rate['n']}, 95{NBSP}% interval {interval(rate)}"
        )
        for name, rate in (("Policy alone", before), ("With planning", after))
    ]
    gain = f"95{NBSP}% interval {gain_interval(paired)}, exact McNemar {p_value(paired['p'])}"
    numbers = [*rates, Number("Difference", f"{points(paired['diff'])} points", "", note=gain)]
    seconds = metrics["planning"]["seconds_per_chunk"]
    if seconds is not None:
        numbers.append(Number("Planning", round(seconds, 2), "s per chunk"))
    numbers += [Number(f"PSNR after {name.partition('@')[2]} steps", round(value, 1), "dB", imagined=True, note="of the films") for name, value in list(metrics["films"].items())[-1:]]  # fmt: skip
    return numbers


def success_table(metrics: Mapping[str, Any]) -> Table:
    """Success of each task, alone and with planning."""
    rows = [*metrics["tasks"].items(), ("all", metrics)]
    cells = [
        (name, with_rate(row["before"]), with_rate(row["after"]), f"{points(row['paired']['diff'])} [{gain_interval(row['paired'])}]".replace(" to ", ", "))
        for name, row in rows
    ]  # fmt: skip
    headers = ("Task", "Policy alone", "With planning", "Difference, points")
    return Table("Real success with 95 % intervals", headers, cells, "Counts of episodes are in brackets.")
