"""Broken limits of many planned videos of ``eva``, which are decoded and not executed.

Some two plans in a thousand frames break a limit, too few among the executed ones. ``change.limit_plans=N`` plans from
N states of their own, the same for every arm, so plans are compared in pairs. Shapes: ``N`` plans of an arm.
"""

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, bootstrap
from worldrl.evaluation.report.model import Table
from worldrl.recipes.motion.planned_execution import Planning, decoded_plans
from worldrl.reproductions.eva.parts import Parts
from worldrl.reproductions.eva.settings import ALIGNED, CONTROLS, EvaSettings, chunks_to, task_names_of
from worldrl.reproductions.findings import Results
from worldrl.rewards.motion.executability import violation_rate
from worldrl.rollout.imagined.staged_rollouts import StagedConfig

MEASURED = ("none", *CONTROLS, *ALIGNED)
"""Arms with weights of their own; arms that choose among plans have those of ``none`` and would plan N times as much."""
PLANNED = "planned_violations"  # Share of each plan's frames that break a limit
PURPOSE = "limits"


def planned_violations(settings: EvaSettings, parts: Parts, planning: Planning) -> dict[str, list[float]]:
    """Share of frames that break a limit, of ``limit_plans`` plans shared by the tasks; empty where none are set."""
    if not settings.limit_plans:
        return {}
    basis, tasks = parts.executability.basis, task_names_of(settings)
    rates: list[float] = []
    for task in tasks:
        config = StagedConfig(proposals=1, stage_chunks=chunks_to(settings, task))
        count = -(-settings.limit_plans // len(tasks))
        for found in decoded_plans(planning, task, config, count=count, purpose=PURPOSE, domain=settings.domain):
            rates += violation_rate(found.decoded, basis.dt, basis.limits).tolist()
    return {PLANNED: rates}


def rates_of(results: Results, arm: str) -> NDArray[np.float64]:
    """Shares of all seeds' plans of one arm, seed after seed, ``[N]``."""
    return np.concatenate([np.asarray(found[PLANNED], np.float64) for found in results[arm]])


def mean_rate(values: NDArray[np.float64], *what: str) -> Bootstrap:
    """Mean of ``[N]`` with its interval over plans; ``what`` names the resampling."""
    return bootstrap(values, np.mean, generator=numpy_stream(0, "eva", PURPOSE, *what))


def halved(results: Results) -> Bootstrap | None:
    """Half the share before less the share after, plan by plan; None where only executed plans were counted."""
    if PLANNED not in results["none"][0]:
        return None
    return mean_rate(rates_of(results, "none") / 2 - rates_of(results, "flow-grpo"), "halved")


def limits_table(results: Results) -> Table:
    """Broken limits of every arm with weights of its own; no row for an arm without such plans."""
    rows: list[tuple[str, ...]] = []
    for arm in (arm for arm in MEASURED if arm in results and PLANNED in results[arm][0]):
        rates = rates_of(results, arm)
        change = "" if arm == "none" else _in_percent(mean_rate(rates - rates_of(results, "none"), "change", arm))
        touched = f"{100 * (rates > 0).mean():.2g} %"
        rows.append((arm, str(len(rates)), _in_percent(mean_rate(rates, arm)), touched, change))
    heads = ("Arm", "Plans", "Frames that break a limit, %", "Plans that do", "Change, points")
    note = (
        "Planned and read, not executed; means over plans of all seeds with 95 % bootstrap intervals over plans. The change is of the "
        "same states with the same noise, against none. A bound that no plan breaks has an interval of no width."
    )
    return Table("Limits broken in planned videos", heads, rows, note)


def _in_percent(found: Bootstrap) -> str:
    return f"{100 * found['value']:.3g} [{100 * found['lo']:.3g}, {100 * found['hi']:.3g}]"
