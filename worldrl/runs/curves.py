"""Curves of several runs in one figure: runs that differ in their seed alone are one line, with an interval.

Shapes legend: ``R`` runs of a group, ``N`` steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.statistics.intervals import mean_interval
from worldrl.evaluation.report.model import Curve, Table
from worldrl.evaluation.report.words import number
from worldrl.runs.listing import differing
from worldrl.runs.reading import Run, read_curves

Floats = NDArray[np.float64]
Points = Sequence[tuple[int, float]]

NO_METHOD = ("seed", "run_dir", "tracker", "threads", "workers", "device", "run", "worlds", "videos")
"""Settings that do not distinguish runs unless ``by`` names them: they change no method."""
UNSET = "unset"
MOST_NAMES = 12
"""Curves that a refusal names."""


@dataclass(frozen=True)
class Group:
    """Runs of one method: their values on common steps."""

    name: str
    runs: Sequence[str]
    seeds: Sequence[str]
    steps: Floats  # [N]
    values: Floats  # [R, N]

    @property
    def mean(self) -> Floats:
        """Mean over the runs, ``[N]``."""
        return self.values.mean(axis=0)

    def bands(self) -> list[tuple[float, float, float]]:
        """Step and ends of Student's 95 % interval over the runs; none of one run, and none where all runs agree."""
        if len(self.runs) < 2:
            return []
        found = [mean_interval(column) for column in self.values.T]
        return [(float(step), mean["lo"], mean["hi"]) for step, mean in zip(self.steps, found, strict=True)]


def grouped(folder: Path, runs: Sequence[Run], metric: str, by: Sequence[str] = ()) -> tuple[str, list[Group]]:
    """Read the curves of ``metric`` and group them by the settings ``by``, or by all in which the methods differ.

    ``metric`` is the end of a curve's name. Returns the whole name and the groups, ordered by name. Raises SettingError
    (no run has such a curve, or the end fits several) and ArtefactError (a group's runs have no common steps).
    """
    runs = sorted(runs, key=lambda run: run.name)
    held = {run.name: read_curves(folder, run.name)["curves"] for run in runs if run.has_metrics}
    name = whole_name(held, metric)
    kept = [run for run in runs if name in held.get(run.name, {})]
    found: dict[str, list[Run]] = {}
    for run, named in zip(kept, _names(kept, by), strict=True):
        found.setdefault(named, []).append(run)
    return name, [
        _group(named, found[named], [held[run.name][name] for run in found[named]]) for named in sorted(found)
    ]


def whole_name(held: Mapping[str, Mapping[str, Points]], metric: str) -> str:
    """Find the one curve ``series/metric`` whose name ends with these parts, or refuse with those that there are."""
    names = sorted({name for curves in held.values() for name in curves})
    fitting = [name for name in names if name == metric] or [
        name for name in names if metric and f"/{name}".endswith(f"/{metric}")
    ]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join((fitting or names)[:MOST_NAMES]) + (", …" if len(fitting or names) > MOST_NAMES else "")
    if fitting:
        raise SettingError(f"metric: {metric!r} fits several curves; give one of {shown}")
    if not names:
        raise SettingError("filter: no run that it keeps has a curve; worldrl runs --table lists the runs")
    ends = {name.split("/", parts)[-1]: name for name in names for parts in range(name.count("/") + 1)}
    close = get_close_matches(metric, ends, 1)
    meant = f"; did you mean {close[0]!r}?" if close else f"; there are {shown}"
    raise SettingError(f"metric: no run has a curve {metric!r}{meant}" if metric else f"metric: give one of {shown}")


def _names(runs: Sequence[Run], by: Sequence[str]) -> list[str]:
    """Name each run's group: by the settings ``by``, or by the fewest that distinguish the methods."""
    if by:
        _require_settings(runs, by)
        return [" ".join(f"{key}={_setting(run, key)}" for key in by) for run in runs]
    differs = differing(runs)
    methods = [{k: v for k, v in differs[run.name].items() if k.split(".")[-1] not in NO_METHOD} for run in runs]
    found = [{"command": run.command, **method} for run, method in zip(runs, methods, strict=True)]
    keys = _distinguishing(found) or ["command"]
    return [" ".join(f"{key}={method.get(key, UNSET)}" for key in keys) for method in found]


def _distinguishing(methods: Sequence[Mapping[str, str]]) -> list[str]:
    """Leave out settings, the first first, as long as the rest distinguish as many methods."""
    keys = list(dict.fromkeys(key for method in methods for key in method))
    for key in list(keys):
        rest = [other for other in keys if other != key]
        if _distinct(methods, rest) == _distinct(methods, keys):
            keys = rest
    return keys


def _distinct(methods: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(method.get(key) for key in keys) for method in methods})


def _require_settings(runs: Sequence[Run], by: Sequence[str]) -> None:
    for key in by:
        if all(_setting(run, key) == UNSET for run in runs):
            raise SettingError(f"by: no run has a setting {key!r}{nearest(key, runs[0].settings)}")


def _setting(run: Run, key: str) -> str:
    """Return the value of a setting by the end of its name; a run of an earlier version may lack it."""
    found = [value for name, value in run.settings.items() if f".{name}".endswith(f".{key}")]
    if len(found) > 1:
        raise SettingError(f"by: {run.name} has {len(found)} settings that end with {key!r}; give the whole name")
    return found[0] if found else UNSET


def _group(name: str, runs: Sequence[Run], curves: Sequence[Points]) -> Group:
    steps, values = on_common_steps(curves, name)
    seeds = [run.settings.get("seed", "") for run in runs]
    return Group(name, [run.name for run in runs], seeds, steps, values)


def on_common_steps(curves: Sequence[Points], name: str) -> tuple[Floats, Floats]:
    """Return steps ``[N]`` and values ``[R, N]`` of curves where all of them were measured.

    The steps are those of the curve with the fewest there; others are interpolated linearly. Values that are not finite
    are left out. Raises ArtefactError where the curves of ``name`` have no common range.
    """
    finite = [
        np.array([point for point in sorted(points) if np.isfinite(point[1])]).reshape(-1, 2) for points in curves
    ]
    if not all(len(points) for points in finite):
        raise ArtefactError(f"{name}: a run has no finite value of this curve")
    low, high = max(points[0, 0] for points in finite), min(points[-1, 0] for points in finite)
    inside = [points[(points[:, 0] >= low) & (points[:, 0] <= high), 0] for points in finite]
    steps = np.unique(min(inside, key=len))
    if steps.size == 0:
        raise ArtefactError(f"{name}: its runs measured no common steps; choose runs with filter=")
    return steps, np.stack([np.interp(steps, points[:, 0], points[:, 1]) for points in finite])


def figure(metric: str, groups: Sequence[Group]) -> Curve:
    """Lay the groups out as one chart."""
    series = {group.name: list(zip(group.steps.tolist(), group.mean.tolist(), strict=True)) for group in groups}
    bands = {group.name: group.bands() for group in groups if group.bands()}
    imagined = list(series) if "imagined" in metric else []
    return Curve(metric, "step", metric.split("/")[-1], series, bands, imagined)


def last_values(groups: Sequence[Group]) -> Table:
    """Lay out the value of each group at its last common step."""
    rows = [[group.name, str(len(group.runs)), number(float(group.steps[-1])), _bracketed(group)] for group in groups]
    return Table("At the last common step", ("line", "runs", "step", "mean [95 %]"), rows)


def _bracketed(group: Group) -> str:
    ends = "".join(f" [{number(lo)}, {number(hi)}]" for _, lo, hi in group.bands()[-1:])
    return f"{number(float(group.mean[-1]))}{ends}"


def lines(groups: Sequence[Group]) -> list[list[str | float]]:
    """Return a line per group, run and step: group, run, seed, step, value."""
    return [
        [group.name, run, seed, step, value]
        for group in groups
        for run, seed, values in zip(group.runs, group.seeds, group.values.tolist(), strict=True)
        for step, value in zip(group.steps.tolist(), values, strict=True)
    ]


def repeated(groups: Sequence[Group]) -> list[str]:
    """Name the groups that hold a seed more than once, whose intervals are too narrow."""
    return [
        f"{group.name}: a seed occurs in several runs, which are not independent: the interval is too narrow."
        for group in groups
        if len(set(group.seeds)) < len(group.seeds)
    ]
