"""The page of ``worldrl rank`` and its closing table; everything imagined is called so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldrl.core.storage.log import console
from worldrl.evaluation.report.model import Gate as ReportGate
from worldrl.evaluation.report.model import ImaginedReal, Number, ReportData, Table
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import interval, p_value, percent, points
from worldrl.evaluation.world_model.gates import Gate
from worldrl.recipes.imagined_success import NOTES

PAGE = ("measurements", "imagined", "gates", "notes", "configuration")
BEST = "The probability of being best is a bootstrap over start frames. It does not know the world model's own errors."
REAL = "Real outcomes are those of the file given as `outcomes`."


def report_page(metrics: Mapping[str, Any], gates: Sequence[Gate], *, seed: int, device: str) -> ReportData:
    """Gather what the page shows."""
    tables = [policy_table(metrics), pair_table(metrics)]
    found = metrics["calibration"]
    return ReportData(
        title=f"rank: {len(metrics['order'])} policies by imagined success",
        sentence=sentence(metrics),
        imagined=True,
        sections=[key for key in PAGE if key != "imagined" or found],
        headline=[Number("Start frames", metrics["starts"])],
        tables=[*tables, calibration_table(found)] if found else tables,
        imagined_real=[
            ImaginedReal(one["policy"], one["imagined"], one["real"]) for one in metrics["policies"] if "real" in one
        ],
        gates=[
            ReportGate(g.name, g.value, g.threshold, g.passed, g.meaning, g.advice, lo=g.lo, hi=g.hi) for g in gates
        ],
        seeds=[seed],
        provenance={
            "world model": f"{metrics['world_model']['path']} ({metrics['world_model']['hash'][:16]})",
            "episodes": f"{', '.join(metrics['data']['path'])} ({metrics['data']['hash'][:16]})",
            "device": device,
        },
        notes=[*warnings(metrics), *NOTES, BEST, *([REAL] if found else []), *metrics["assumed"]],
    )


def sentence(metrics: Mapping[str, Any]) -> str:
    """Which policy comes first, in statements of one number each."""
    first = next(one for one in metrics["policies"] if one["policy"] == metrics["order"][0])
    return (
        f"Imagined success is highest for {first['policy']}: {percent(first['imagined']['rate'])} of "
        f"{first['imagined']['n']} imagined rollouts (95 % interval {interval(first['imagined'])}). It is the best of "
        f"{len(metrics['order'])} with probability {first['probability_best']:.2f}."
    )


def warnings(metrics: Mapping[str, Any]) -> list[str]:
    """Why the ranking is not to be trusted, one statement each."""
    return [f"Do not trust this ranking: {reason}." for reason in metrics["not_trusted"]]


def policy_table(metrics: Mapping[str, Any]) -> Table:
    """Each policy's imagined success, the best first, and its real success where that is known."""
    known = {one["policy"]: one for one in metrics["policies"]}
    rows = [known[label] for label in metrics["order"]]
    real = any("real" in one for one in rows)
    return Table(
        "Imagined success",
        (
            "policy",
            "imagined success",
            "95 % interval",
            "probability best",
            *(["real success", "95 % interval"] if real else []),
        ),
        [
            (
                one["policy"],
                percent(one["imagined"]["rate"]),
                interval(one["imagined"]),
                f"{one['probability_best']:.3f}",
                *(_real(one.get("real")) if real else []),
            )
            for one in rows
        ],
    )


def _real(rate: Mapping[str, Any] | None) -> tuple[str, str]:
    return (f"{percent(rate['rate'])} ({rate['k']}/{rate['n']})", interval(rate)) if rate else ("not given", "")


def pair_table(metrics: Mapping[str, Any]) -> Table:
    """The first policy against every other, on the same start frames."""
    first, *others = metrics["order"]
    rows = []
    for other in others:
        pair = next(one for one in metrics["pairs"] if {one["a"], one["b"]} == {first, other})
        sign, (lo, hi) = (1, (pair["lo"], pair["hi"])) if pair["b"] == first else (-1, (-pair["hi"], -pair["lo"]))
        rows.append((other, points(sign * pair["diff"]), f"{points(lo)} to {points(hi)}", p_value(pair["p"])))
    return Table(
        f"Imagined success of {first} minus that of each other policy",
        ("policy", "difference, points", "95 % interval", "p"),
        rows,
        note="Paired by start frame: Newcombe's interval, exact McNemar p without correction for several comparisons.",
    )


def calibration_table(found: Mapping[str, Any]) -> Table:
    """How imagined success follows real success over the policies with real outcomes."""
    names = {
        "pearson": ("Pearson r", "r"),
        "spearman": ("Spearman r", "r"),
        "mmrv": ("mean maximum rank violation", "value"),
        "bias": ("imagined minus real success", "mean"),
    }
    rows = [
        (name, f"{one[key]:.3f}", f"{one['lo']:.3f} to {one['hi']:.3f}") if one else (name, "too few policies", "")
        for name, key, one in ((*names[part], found[part]) for part in names)
    ]
    return Table(
        f"Imagined beside real success of {found['policies']} policies", ("number", "value", "95 % interval"), rows
    )


def show(metrics: Mapping[str, Any], folder: Path) -> None:
    """Print the closing tables, the statement, and last why the ranking is not to be trusted."""
    print_table(policy_table(metrics), console())
    print_table(pair_table(metrics), console())
    if metrics["calibration"]:
        print_table(calibration_table(metrics["calibration"]), console())
    for line in (sentence(metrics), *warnings(metrics), f"report: {folder / 'report.html'}"):
        console().print(line, markup=False, soft_wrap=True)
