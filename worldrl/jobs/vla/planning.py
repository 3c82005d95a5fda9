"""Planning at test time in ``worldrl train-vla``: who collects with the planner, and what it adds to the evaluations.

::

    world model of round r - 1 ─► r-1-practice, source "planner" ─► r-4-improve clones it (collected_share)
    last world model ─► 06-planner-before, 07-planner-after, on the initial states of 03-before and 05-after
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worldrl.evaluation.policy.compare import compare
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.words import gain_interval, number, points, with_rate
from worldrl.jobs.vla.artefacts import SavedPolicy, SavedWorld
from worldrl.jobs.vla.checks import evaluate
from worldrl.jobs.vla.loop import Loop
from worldrl.recipes.planning import planning_metrics
from worldrl.rollout.agents.planned_policy import policy_with
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.planning.config import Planner

STAGES = {"before": "06-planner-before", "after": "07-planner-after"}
HEADERS = ("Policy", "Alone", "With planner", "Difference, points", "Chunks planned", "Seconds per chunk")


def planner_in(loop: Loop, world: SavedWorld) -> Planner | None:
    """The run's planner, which imagines in ``world``; None where nobody plans."""
    planner = loop.plan.planner
    return planner and replace(planner, config=replace(planner.config, world_model=str(world.folder)))


def planned_policy(loop: Loop, policy: SavedPolicy, world: SavedWorld) -> PolicyActor:
    """Who plays the episodes of ``collection.planner_episodes``: the greedy policy and the planner, as evaluated."""
    return policy_with(planner_in(loop, world), folder=str(policy.folder))


def measure_planner(
    loop: Loop, world: SavedWorld, sides: Mapping[str, tuple[SavedPolicy, EvalResult]]
) -> dict[str, Any]:
    """Measure policies with the planner in ``world``, each paired with its result alone; nothing where nobody plans."""
    if (planner := planner_in(loop, world)) is None:
        return {}
    found = dict[str, Any]()
    for side, (policy, alone) in sides.items():
        planned = evaluate(loop, STAGES[side], policy, planner)
        counts = planning_metrics(planner.name, [outcome.planned for outcome in planned.outcomes])
        found[side] = {**counts["planning"], "comparison": compare(alone, planned).metrics()}
    return {"planning": found}


def planning_tables(metrics: Mapping[str, Any]) -> list[Table]:
    """One row for each policy, alone and with the planner; no table where nobody planned."""
    found = metrics.get("planning", {})
    rows = [_row(side, part) for side, part in found.items()]
    names = {part["planner"] for part in found.values()}
    note = "On the same initial states. The planner imagines in the run's last world model; nothing is trained."
    return [Table(f"Real success with the planner {', '.join(names)}", HEADERS, rows, note)] if rows else []


def _row(side: str, part: Mapping[str, Any]) -> tuple[str, ...]:
    compared = part["comparison"]
    pair, chunks = compared["paired"], part["planned"] + part["alone"]
    return (
        {"before": "supervised", "after": "final"}[side],
        with_rate(compared["before"]),
        with_rate(compared["after"]),
        f"{points(pair['diff'])} [{gain_interval(pair)}]".replace(" to ", ", "),
        f"{part['planned']} of {chunks}",
        number(part["seconds_per_chunk"] and round(part["seconds_per_chunk"], 2)),
    )
