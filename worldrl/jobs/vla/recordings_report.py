"""The page of ``worldrl train-vla suite=recordings`` and its closing lines; everything imagined is called so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldrl.core.storage.log import console, read_metrics
from worldrl.evaluation.report.model import DataUse, Number, ReportData, Table
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import duration, gain_interval, p_value, percent, points, with_rate
from worldrl.jobs.vla.branch import branch_notes
from worldrl.jobs.vla.loop import Loop
from worldrl.jobs.vla.report import filmstrips, improvement_curves, report_gates, stage_times, training_curves, videos
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.workers.robotwin.facts import SIZE

PAGE = ("measurements", "gates", "curves", "filmstrips", "videos", "cost", "notes", "configuration")
LOOP = "python -m pydoc worldrl.rollout.agents.robot_side"
"""Shows the loop that runs a policy in the robot's own units; a wheel has no guide."""


def report_page(loop: Loop, metrics: Mapping[str, Any]) -> ReportData:
    """Gather what the page shows from the finished stages."""
    plan, facts = loop.plan, metrics["recordings"]
    learned = facts["episodes"] - facts["held_out"]
    return ReportData(
        title=f"train-vla on recordings of {', '.join(plan.tasks)}",
        sentence=sentence(metrics),
        imagined=True,
        sections=PAGE,
        headline=[
            Number("Wall time", duration(loop.run.wall_s)),
            Number("Held-out start frames", metrics["imagined_before"]["imagined_success"]["n"]),
        ],
        tables=[success_table(metrics), trials_table(metrics)],
        curves=[
            *improvement_curves([{"improve": {"history": metrics["improvement"]["imagined_history"]}}]),
            *training_curves(read_metrics(loop.run.path)),
        ],
        gates=report_gates(metrics["gates"]),
        filmstrips=filmstrips(loop),
        videos=videos(loop),
        stages=stage_times(loop),
        data_budget=[
            DataUse("recordings", learned, "policy, world model, imagined starts"),
            DataUse("held-out recordings", facts["held_out"], "calibration, gates, start frames of imagined success"),
        ],
        seeds=[plan.seed],
        provenance={
            "recordings": f"{facts['path']} ({metrics['content'][:16]})",
            "policy for the robot": str(loop.run.path / metrics["policy_for_robot"]),
            "device": str(plan.device),
        },
        notes=[*warnings(metrics), *branch_notes(metrics), *plan.suite.limits, *metrics["assumed"]],
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """What became of imagined success, in statements of one interval each."""
    before, after = (metrics[f"imagined_{when}"]["imagined_success"] for when in ("before", "after"))
    pair = metrics["imagined_comparison"]["imagined_paired"]
    return (
        f"Imagined success is {percent(before['rate'])} before and {percent(after['rate'])} after, from the same "
        f"{before['n']} held-out start frames. The imagined difference is {points(pair['diff'])} points (95 % interval "
        f"{gain_interval(pair)}). Nothing was measured on a robot."
    )


def warnings(metrics: Mapping[str, Any]) -> list[str]:
    """Why these numbers are not to be trusted, one statement each."""
    return [f"Do not trust imagined success here: {reason}." for reason in metrics["not_trusted"]]


def success_table(metrics: Mapping[str, Any]) -> Table:
    """Imagined success before and after, by task and of all."""
    before, after, pairs = (metrics[f"imagined_{name}"] for name in ("before", "after", "comparison"))
    rows = [_row(task, before["tasks"][task], after["tasks"][task], pairs["tasks"][task]) for task in before["tasks"]]
    return Table(
        "Imagined success from held-out start frames",
        ("task", "imagined before", "imagined after", "difference, points", "95 % interval", "p"),
        [*rows, _row("all tasks", before, after, pairs)],
        note="Paired by start frame: Newcombe's interval, exact McNemar p.",
    )


def _row(name: str, before: Mapping[str, Any], after: Mapping[str, Any], pairs: Mapping[str, Any]) -> tuple[str, ...]:
    pair = pairs["imagined_paired"]
    shown = (with_rate(one["imagined_success"]) for one in (before, after))
    return (name, *shown, points(pair["diff"]), gain_interval(pair), p_value(pair["p"]))


def trials_table(metrics: Mapping[str, Any]) -> Table:
    """The real trials that would decide."""
    plan = metrics["real_trials"]
    rows = [("imagined difference", "not above 0, or too small to plan real trials for")]
    if plan is not None:
        rows = [
            ("imagined difference, points", points(plan["imagined_difference"])),
            ("pairs, if they are compared once", str(plan["pairs_at_once"])),
        ]
        sequential = {
            "most_pairs": "sequential test: pairs at most",
            "mean_pairs": "on average, if the imagined difference is real",
            "mean_pairs_if_equal": "on average, if the policies are equal",
        }
        rows += [(text, f"{plan[key]:.0f}") for key, text in sequential.items() if key in plan]
    note = "One pair is a trial of each policy from the same arrangement. Alpha is 0.05, power 0.8."
    return Table("Real trials that would decide", ("what", "number"), rows, note)


def show(metrics: Mapping[str, Any], run: Path, page: Path) -> None:
    """Print the closing tables, the statement, why it is not to be trusted, and what to do next."""
    print_table(success_table(metrics), console())
    print_table(trials_table(metrics), console())
    folder = run / metrics["policy_for_robot"]
    improved = metrics["policy_for_robot"] == metrics["policy"]
    against = f"compare it on the robot with {run / metrics['supervised_policy']}"
    bimanual = policy_facts(folder).actions.size == SIZE  # what the server's client takes
    for line in (
        sentence(metrics),
        *warnings(metrics),
        f"policy for the robot: {folder}",
        against if improved else "it is the supervised policy: imagined success has not risen",
        f"run it: {f'worldrl serve-policy policy={folder}' if bimanual else f'the loop that `{LOOP}` prints'}",
        f"report: {page}",
    ):
        console().print(line, markup=False, soft_wrap=True)
