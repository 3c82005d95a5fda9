"""How well a monitor's scores detect failures of running episodes: areas under the ROC curve, alarms, and lead time.

Failures run to the time limit and successes end early, so a score that grows with time ranks whole episodes well by time
alone. So the area is also measured at equal time: only pairs of a failure and a success of one task that both still run
at a decision count, Σ n m A / Σ n m over decisions. The alarms that time alone would give stand beside the monitor's.

Shapes legend: ``E`` episodes, ``H`` decisions; rows hold task, failure (0 or 1) and scores, NaN where none was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.statistics.intervals import auroc, mean_interval, wilson
from worldrl.rollout.real.specs import EpisodeOutcome

FIRST = 2  # column of the first score


def score_rows(outcomes: Sequence[EpisodeOutcome]) -> NDArray[np.float64]:
    """Rows ``[E, 2 + H]`` of monitored episodes; scores are in units of the task's limit, so that tasks compare."""
    tasks = sorted({outcome.spec.task for outcome in outcomes})
    scores = [(one.monitored.score, one.monitored.limit) if one.monitored else ((), 1.0) for one in outcomes]
    rows = np.full((len(outcomes), FIRST + max(len(score) for score, _ in scores)), np.nan)
    for row, outcome, (score, limit) in zip(rows, outcomes, scores, strict=True):
        row[:FIRST] = tasks.index(outcome.spec.task), not outcome.success_once
        row[FIRST : FIRST + len(score)] = np.array(score) / limit
    return rows


def area_of_highest(rows: NDArray[np.float64]) -> float:
    """Probability that a failure's highest score exceeds a success's."""
    highest, failed = np.nanmax(rows[:, FIRST:], axis=1), rows[:, 1] > 0
    return auroc(highest[failed], highest[~failed])


def area_at_equal_time(rows: NDArray[np.float64]) -> float:
    """The same of scores at one decision of episodes of one task that both run; 0.5 without such a pair."""
    areas, pairs = list[float](), list[int]()
    for task in np.unique(rows[:, 0]):
        mine = rows[rows[:, 0] == task]
        for column in mine[:, FIRST:].T:
            above, below = (column[(mine[:, 1] > 0) == failed] for failed in (True, False))
            above, below = above[~np.isnan(above)], below[~np.isnan(below)]
            if above.size and below.size:
                areas.append(auroc(above, below))
                pairs.append(above.size * below.size)
    return float(np.average(areas, weights=pairs)) if pairs else 0.5


def failure_detection(
    outcomes: Sequence[EpisodeOutcome], steps_limit: Mapping[str, float], *, seed: int
) -> dict[str, Any]:
    """Measure a monitor on the outcomes of an evaluation; ``steps_limit`` is what time alone has by task."""
    rows, failed = score_rows(outcomes), [one for one in outcomes if not one.success_once]
    areas = {"auroc": area_of_highest, "auroc_at_equal_time": area_at_equal_time}
    known = {
        name: bootstrap(rows, area, generator=numpy_stream(seed, "failure-detection", name))
        for name, area in areas.items()
        if 0 < len(failed) < len(outcomes)
    }
    alarms = [one.monitored.alarm if one.monitored else None for one in outcomes]
    late = [steps_limit[one.spec.task] for one in outcomes]
    times = [int(limit) if one.steps > limit else None for one, limit in zip(outcomes, late, strict=True)]
    by_time = _alarms(outcomes, times)
    return {"failure_detection": {**known, **_alarms(outcomes, alarms), "time_alone": by_time}}


def _alarms(outcomes: Sequence[EpisodeOutcome], alarm: Sequence[int | None]) -> dict[str, Any]:
    """Alarms at failures and at successes, and the lead: control steps from an alarm to a failed episode's end."""
    kinds = {"alarms_at_failures": False, "false_alarms": True}
    found: dict[str, Any] = {}
    for name, success in kinds.items():
        hits = [at is not None for one, at in zip(outcomes, alarm, strict=True) if one.success_once == success]
        found[name] = wilson(sum(hits), len(hits)) if hits else None
    pairs = zip(outcomes, alarm, strict=True)
    leads = [one.steps - at for one, at in pairs if at is not None and not one.success_once]
    return {**found, "lead_steps": mean_interval(leads) if len(leads) > 1 else None}


def described(found: Mapping[str, Any]) -> str:
    """The same in lines, for the terminal."""

    def shown(value: Mapping[str, Any] | None, name: str) -> str:
        return "not measured" if value is None else f"{value[name]:.2f} [{value['lo']:.2f}, {value['hi']:.2f}]"

    lines = [
        f"failures by the monitor: AUROC {shown(found.get('auroc'), 'value')}, "
        f"at equal time {shown(found.get('auroc_at_equal_time'), 'value')}"
    ]
    for who, part in (("monitor", found), ("time alone", found["time_alone"])):
        lines.append(
            f"{who}: alarms at {shown(part['alarms_at_failures'], 'rate')} of failures, {shown(part['false_alarms'], 'rate')} "
            f"of successes; lead {shown(part['lead_steps'], 'mean')} steps"
        )
    return "\n".join(lines)
