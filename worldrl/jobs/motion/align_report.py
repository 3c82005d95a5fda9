"""What the report page of ``worldrl align-world-model`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.evaluation.report.model import Curve, Filmstrip, Number, ReportData, Table
from worldrl.evaluation.report.words import bounds, count, rounded, tile
from worldrl.methods.alignment.measure import MOTION, Measured

PAGE = ("measurements", "curves", "filmstrips", "notes", "configuration")
STRIP_FRAMES = 9
LIMITS = (
    "Every number on this page is imagined: it is the reward of the model's videos, not the success of a robot "
    "that executes what is decoded from them.",
    "Before and after begin at the same unseen first frames with the same noise; intervals are bootstrapped over these starts.",
    "A reward of smooth motion may be highest for a still image: the row of motion shows whether the videos still move.",
    "Curves are of the training starts, with the noise that the method adds; the table is of the sampler as it is used.",
)


def report_page(
    metrics: Mapping[str, Any],
    history: Sequence[Mapping[str, float]],
    before: Measured,
    after: Measured,
    *,
    seed: int,
    device: str,
) -> ReportData:
    """Gather what the page shows."""
    return ReportData(
        title=f"align-world-model by {metrics['method']}",
        sentence=sentence(metrics),
        sections=PAGE,
        headline=[
            *(tile(f"Gain in {name}", sides["gain"], imagined=True) for name, sides in metrics["terms"].items()),
            motion_number(metrics),
        ],
        tables=[terms_table(metrics), *collection_tables(metrics["executed_plans"])],
        curves=curves(history),
        filmstrips=filmstrips(before, after),
        seeds=[seed],
        provenance={"device": device},
        notes=LIMITS,
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """What was found, in one statement made of numbers alone."""
    parts = [
        f"{name} {_value(sides['before'])} to {_value(sides['after'])}" for name, sides in metrics["terms"].items()
    ]
    return f"In imagination, over {count(metrics['held_out_starts'], 'unseen start')}: {'; '.join(parts)}."


def motion_number(metrics: Mapping[str, Any]) -> Number:
    """Was the motion kept? Start by start."""
    found = metrics["motion_kept"]
    quantity = f"{MOTION} after less {found['share']} of before, start by start ({count(found['n'], 'start')})"
    note = f"{quantity}; 95 % interval {bounds(found)}; {MOTION} {found['before']:.3g} to {found['after']:.3g}"
    return Number(f"Motion {found['verdict']}", rounded(found["value"]), imagined=True, note=note)


def terms_table(metrics: Mapping[str, Any]) -> Table:
    """Every term before and after."""
    weight = metrics["weights"]
    rows = [
        [
            name,
            f"{weight[name]:g}" if name in weight else "",
            *(f"{_value(sides[side])} ({bounds(sides[side])})" for side in ("before", "after", "gain")),
        ]
        for name, sides in metrics["terms"].items()
    ]
    note = (
        f"Means over {count(metrics['held_out_starts'], 'unseen start')}, with 95 % intervals; mixed by {metrics['mixing']} with "
        f"these weights; {MOTION} is no reward."
    )
    return Table("Reward terms, imagined", ("term", "weight", "before", "after", "gain"), rows, note)


def collection_tables(practice: Mapping[str, Any] | None) -> list[Table]:
    """What each reward knew of the success of the plans that were executed; none without practice."""
    if practice is None:
        return []
    kept = count(practice["successes"] + practice["failures"], "plan")
    critic = (_area(practice["auroc"]), _area(practice["auroc_pooled"]), f"{kept} that it has not learned from")
    rows = [("execution (the critic)", *critic)]
    pooled = practice["terms_pooled"]
    rows += [(name, _area(area), _area(pooled[name]), "all executed plans") for name, area in practice["terms"].items()]
    note = (
        "Area under the ROC curve: does the reward rank plans that succeeded above those that failed? 0.5 is chance, 1 is perfect. "
        "Within tasks: only plans of the same task are compared. All tasks together: a reward that only separates easy tasks from "
        "hard ones is above 0.5, too."
    )
    heads = ("reward", "area within tasks", "all tasks together", "measured on")
    return [Table("How rewards rank executed plans", heads, rows, note)]


def _area(area: float | None) -> str:
    return "unknown: one outcome only" if area is None else f"{area:.2f}"


def curves(history: Sequence[Mapping[str, float]]) -> list[Curve]:
    """One chart per logged quantity: every term's reward, then how far it tells a group's videos apart, training, cost."""
    names = sorted({name for row in history for name in row}, key=lambda name: (_ORDER.index(name.split("/")[0]), name))
    return [_curve(name, history) for name in names]


_ORDER = ("reward", "spread", "align", "cost")


def _curve(name: str, history: Sequence[Mapping[str, float]]) -> Curve:
    kind, quantity = name.split("/", 1)
    label = quantity.replace("_", " ")
    points = [(float(k), row[name]) for k, row in enumerate(history) if name in row]
    imagined = (label,) if kind == "reward" else ()
    return Curve(f"{label} ({kind})", "iteration", label, {label: points}, imagined=imagined)


def filmstrips(before: Measured, after: Measured) -> list[Filmstrip]:
    """The same start and noise before and after."""
    at = range(0, before.pictures.shape[1], -(-before.pictures.shape[1] // STRIP_FRAMES))
    labels = [f"frame {i}" for i in at]
    return [
        Filmstrip(
            f"Start {n + 1}: {said}",
            "Frame 0 is recorded.",
            {"before": was[:: at.step], "after": now[:: at.step]},
            labels,
        )
        for n, (said, was, now) in enumerate(zip(before.instruction, before.pictures, after.pictures, strict=True))
    ]


def _value(found: Mapping[str, Any]) -> str:
    return f"{found['value']:.3g}"
