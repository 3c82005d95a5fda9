"""Rewards of ``eva`` during alignment, and the cost of two methods up to the same reward.

GDPO normalises terms within groups, so its mixture is not comparable over iterations: the means of all terms are stored
by name, and :func:`climbed` is the one number that stands for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.core.storage.log import MetricLog
from worldrl.methods.alignment.align import align
from worldrl.methods.alignment.measure import measure
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.rl.method import Method
from worldrl.reproductions.eva.settings import TRAINED, EvaSettings, term_weights
from worldrl.rewards.execution_critic import TERM as EXECUTION
from worldrl.rewards.motion.executability import PUBLISHED

CLIMB = "climb.json"  # Means of the terms that an alignment has reached, by finished iterations
SPENT = {
    "seconds": "seconds/iteration",
    "rollout_seconds": "seconds/imagining",
    "cpu_seconds": "cpu_seconds/iteration",
    "cpu_rollout_seconds": "cpu_seconds/imagining",
}
"""An alignment's times by their names in its log: on the wall, and of this process's processors."""
LEAST_LOOKS = 5  # Smallest number of measurements: :func:`strays` needs three for each deviation
MARGIN = 2.0  # Deviations of a measurement between the target and both the beginning and the plateau
Means = Mapping[str, float]  # Mean of every optimised term on kept starts, by name


# --- what is climbed --------------------------------------------------------------------------------------------------


def scales(settings: EvaSettings) -> dict[str, float]:
    """Scale of every optimised term in :func:`climbed`: its weight, for the critic's probability times the executability's range."""
    return {
        name: weight * (PUBLISHED.highest if name == EXECUTION else 1.0)
        for name, weight in term_weights(settings).items()
    }


def climbed(settings: EvaSettings, terms: Means) -> float:
    """Return Σ_k scale_k mean_k / Σ_k weight_k over all terms, penalties included."""
    weights = term_weights(settings)
    return sum(scale * terms[name] for name, scale in scales(settings).items()) / sum(weights.values())


def climb_label(settings: EvaSettings) -> str:
    """Write :func:`climbed` as a formula."""
    parts = [name if scale == 1 else f"{scale:g} x {name}" for name, scale in scales(settings).items()]
    total = sum(term_weights(settings).values())
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)}) / {total:g}"


def climb(
    settings: EvaSettings, task: AlignmentTask, seen: AlignmentTask, method: Method, folder: Path, log: MetricLog
) -> tuple[list[dict[str, float]], dict[int, Means]]:
    """Align in place; return every iteration's numbers, and the terms' means on ``seen``, which ``folder`` keeps."""
    found, history = kept_climb(folder / CLIMB), list[dict[str, float]]()
    for finished in look_points(settings):
        if finished in found and finished < settings.iterations:
            continue
        if finished:
            part = replace(task, config=replace(task.config, iterations=finished))
            history = align(part, method, folder=folder / "checkpoints", log=log)
        if finished not in found:
            terms = measure(seen, 1, pictures=0).terms
            found[finished] = {name: float(terms[name].mean()) for name in task.reward.names}
            write_json(folder / CLIMB, {str(k): value for k, value in found.items()})
    return history, found


def kept_climb(file: Path) -> dict[int, Means]:
    """Read the measurements before a stop, if any; ArtefactError where an earlier version stored one number."""
    found = {int(k): value for k, value in read_json(file).items()} if file.exists() else {}
    if not all(isinstance(value, dict) for value in found.values()):
        raise ArtefactError(f"{file}: an earlier version kept no terms here; delete {file.parent} and run again")
    return found


def look_points(settings: EvaSettings) -> list[int]:
    """Return the numbers of finished iterations at which the reward is measured, 0 and all included."""
    return [*range(0, settings.iterations, settings.look_every), settings.iterations]


def climb_summary(
    settings: EvaSettings,
    history: Sequence[Mapping[str, float]],
    found: Mapping[int, Means],
    lines: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return reward, terms, rows and seconds (of the stage's log, without measurements) by finished iterations."""
    steps = {line["step"]: line["values"] for line in lines if line["series"] == "align"}
    looks = sorted(found)
    return {
        "finished": [float(k) for k in looks],
        "reward": [climbed(settings, found[k]) for k in looks],
        "terms": {name: [found[k][name] for k in looks] for name in scales(settings)},
        "rows": [costs(history[:k])["cost"] for k in looks],
        **{name: [sum(steps[n][key] for n in range(k)) for k in looks] for name, key in SPENT.items()},
    }


def costs(history: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Add up the rows evaluated in imagination and in training."""
    imagined = sum(row.get(f"cost/{name}", 0.0) for row in history for name in ("evaluations", "explore_evaluations"))
    trained = sum(row.get("cost/trained_steps", 0.0) for row in history)
    return {"imagined_rows": imagined, "trained_rows": trained, "cost": imagined + TRAINED * trained}


# --- to the same reward -----------------------------------------------------------------------------------------------
#
# On a plateau the highest reward is a matter of noise, and so is the iteration that comes near it: two methods of which one is
# level from a tenth of its iterations on would need anything from a tenth to all of them. So the reward that both must
# pass lies below the lower plateau by as much as a measurement strays, and where it then lies no such distance above the beginning
# either, nothing was climbed beyond noise and nothing is decided. A share of the gain (nine tenths, say) was
# rejected: it is below the noise where the gain is small, and gives more of the climb away than it must where it is large.


def smoothed(reward: Sequence[float]) -> NDArray[np.float64]:
    """Mean of each measurement and its neighbours; the first, before any training, is not averaged."""
    y = np.asarray(reward, np.float64)
    around = [y[max(k - 1, 0) : k + 2].mean() for k in range(1, len(y))]
    return np.array([y[0], *around])


def strays(reward: Sequence[float]) -> float:
    """Deviation of a measurement: σ² = mean (y_{k-1} - 2 y_k + y_{k+1})² / 6; a bend counts as noise."""
    return float(np.sqrt(np.square(np.diff(reward, 2)).mean() / 6))


def reached_by_both(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the highest reward that both climbs pass beyond their noise σ; None where there is none.

    ``top - 2 σ`` with the lower of the highest smoothed rewards, if it is above ``begin + 2 σ`` with the higher first
    one.
    """
    if min(len(one), len(other)) < LEAST_LOOKS:
        return None
    margin = MARGIN * float(np.hypot(strays(one), strays(other)) / np.sqrt(2))
    top, begin = min(smoothed(one).max(), smoothed(other).max()), max(one[0], other[0])
    return float(top - margin) if top - margin > begin + margin else None


def needed(way: Mapping[str, Any], by: str, target: float) -> float:
    """Return the interpolated cost at which the smoothed reward passes ``target``, which is above the first reward."""
    x, y = way[by], smoothed(way["reward"])
    k = int(np.argmax(y >= target))
    return float(x[k - 1] + (x[k] - x[k - 1]) * (target - y[k - 1]) / (y[k] - y[k - 1]))


def times_less(base: Mapping[str, Any], other: Mapping[str, Any], by: str) -> float | None:
    """Return the cost of ``base`` over that of ``other`` up to the same reward; None where undecided (:func:`reached_by_both`)."""
    target = reached_by_both(base["reward"], other["reward"])
    return None if target is None else needed(base, by, target) / needed(other, by, target)
