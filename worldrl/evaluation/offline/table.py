"""Finished offline trainings in one table: each algorithm on each dataset over its seeds, and which is better.

Returns and scores of several seeds are combined by the interquartile mean; its 95 % interval resamples seeds within each dataset
(Agarwal et al., NeurIPS 2021). Differences are paired by seed: of two algorithms, or of an algorithm and its data. A verdict follows
from the 95 % Student interval of the mean difference alone: with three seeds and no difference, a bootstrap interval excludes zero in
a quarter of the cases, Student's in 5 %.

Shapes legend: ``R`` seeds, ``K`` datasets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.renames import current_config, current_results
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import Bootstrap, interquartile_mean
from worldrl.core.statistics.intervals import mean_interval
from worldrl.core.storage.jsonfile import difference, read_json, read_record
from worldrl.core.storage.run import CONFIG, RESULT, stored_config
from worldrl.core.storage.typed import from_plain
from worldrl.evaluation.offline.scores import score_over_seeds

COMMAND = "train-offline"
SCALES = ("raw", "d4rl", "dataset")
OWN = ("seed", "run_dir", "data", "device", "worlds")
"""Settings in which runs of one row may differ; data are distinguished by their name."""
VERDICTS = ("better", "within the interval", "worse", "open")


@dataclass(frozen=True)
class OfflineRun:
    """One finished run of ``train-offline``."""

    data: str  # short name of the dataset.
    algorithm: str
    seed: int
    scores: Mapping[str, float]  # mean return of the final episodes, by scale; always with ``raw``.
    data_return: float  # mean return of the recorded episodes.
    over_estimation: float | None  # predicted minus real return; None where the critic's prediction is not comparable.
    budget: Mapping[str, int]  # episodes and steps played in the real environment.
    updates: int  # gradient steps.
    wall_s: float  # seconds, over all starts.
    config: Mapping[str, Any]


@dataclass(frozen=True)
class _Result:
    """Required content of ``result.json``."""

    command: str
    seed: int
    wall_s: float
    metrics: dict[str, Any]


@dataclass(frozen=True)
class _Score:
    value: float


@dataclass(frozen=True)
class _Mean:
    mean: float


@dataclass(frozen=True)
class _Evaluation:
    over_estimation: _Mean | None


@dataclass(frozen=True)
class _Data:
    dataset_id: str | None
    source: str
    mean_return: float


@dataclass(frozen=True)
class _Metrics:
    """Required content of its metrics."""

    algorithm: str
    steps: int
    scores: dict[str, _Score]
    evaluation: _Evaluation | None
    data: _Data
    budget: dict[str, int]

    def __post_init__(self) -> None:
        if lacking := {"episodes", "steps"} - set(self.budget):
            raise SettingError(f"budget lacks {sorted(lacking)}")


def read_run(folder: Path, data: str | None = None) -> OfflineRun:
    """Read a finished run; ``data`` is a short name of the dataset, None takes the end of its stored name.

    Raises ArtefactError (not finished, of another command, or never evaluated).
    """
    file = folder / RESULT
    result = read_record(file, _Result, error=ArtefactError, mend="train again")
    if result.command != COMMAND:
        raise ArtefactError(f"{folder}: a run of {result.command!r}; give runs of {COMMAND}")
    where = f"{file}: metrics: damaged; train again"
    metrics = from_plain(_Metrics, current_results(result.metrics), where=where, error=ArtefactError, others=True)
    if not metrics.scores or metrics.evaluation is None:
        raise ArtefactError(f"{folder}: was not evaluated (episodes=0), so it has no score; train with episodes=10")
    named, over = metrics.data, metrics.evaluation.over_estimation
    return OfflineRun(
        data=data or short_name(named.dataset_id or named.source),
        algorithm=metrics.algorithm,
        seed=result.seed,
        scores={scale: metrics.scores[scale].value for scale in SCALES if scale in metrics.scores},
        data_return=named.mean_return,
        over_estimation=None if over is None else over.mean,
        budget=metrics.budget,
        updates=metrics.steps,
        wall_s=result.wall_s,
        config=current_config(stored_config(folder / CONFIG), COMMAND),
    )


def finished_runs(folder: Path) -> list[Path]:
    """Run directories of finished trainings in a folder, at any depth, ordered by name; SettingError without any."""
    found = [path.parent for path in sorted(folder.rglob(RESULT)) if read_json(path).get("command") == COMMAND]
    if not found:
        raise SettingError(
            f"runs: {folder} holds no finished run of {COMMAND}; give its run directory, or a folder of them"
        )
    return found


def short_name(name: str) -> str:
    """Last two parts of a dataset's id or path: ``hopper-v5/full-replay-v0``."""
    parts = [part for part in Path(name).parts if part not in ("/", "data")]
    return "/".join(parts[-2:])


# --- summing up -----------------------------------------------------------------------------------------------------


def rows_of(runs: Sequence[OfflineRun]) -> dict[tuple[str, str], list[OfflineRun]]:
    """Group runs by dataset and algorithm, both in order of appearance, each row ordered by seed.

    Raises SettingError (a seed appears twice, or runs of one row were trained with different settings).
    """
    datasets, algorithms = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("data", "algorithm"))
    rows: dict[tuple[str, str], list[OfflineRun]] = {}
    for run in sorted(runs, key=lambda run: (datasets.index(run.data), algorithms.index(run.algorithm), run.seed)):
        rows.setdefault((run.data, run.algorithm), []).append(run)
    for (data, algorithm), row in rows.items():
        seeds = [run.seed for run in row]
        if len(set(seeds)) < len(seeds):
            raise SettingError(f"runs: {algorithm} on {data} has a seed twice, of {seeds}; give each run once")
        for run in row[1:]:
            if changed := difference(_settings(row[0]), _settings(run)):
                raise SettingError(
                    f"runs: {algorithm} on {data}: seeds {row[0].seed} and {run.seed} were trained with different settings: "
                    f"{changed}; sum up runs of one setting"
                )
    return rows


def _settings(run: OfflineRun) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name not in OWN}


def summarise(row: Sequence[OfflineRun], *, seed: int) -> dict[str, Any]:
    """JSON-ready summary of one algorithm on one dataset, from runs with different seeds; ``seed`` is of the resampling."""
    first = row[0]
    over = [run.over_estimation for run in row if run.over_estimation is not None]
    names = (first.data, first.algorithm)
    return {
        "data": first.data,
        "algorithm": first.algorithm,
        "seeds": [run.seed for run in row],
        "updates": first.updates,
        "scores": {
            scale: _over_seeds([run.scores[scale] for run in row], seed, *names, scale) for scale in first.scores
        },
        "over_estimation": _over_seeds(over, seed, *names, "over-estimation") if over else None,
        "less_data": _over_seeds([run.scores["raw"] - run.data_return for run in row], seed, *names, "data"),
        "data_return": float(np.mean([run.data_return for run in row])),
        "budget": {name: sum(run.budget[name] for run in row) for name in first.budget},
        "wall_s": sum(run.wall_s for run in row),
    }


def over_datasets(rows: Mapping[tuple[str, str], Sequence[OfflineRun]], *, seed: int) -> list[dict[str, Any]]:
    """Summary of each algorithm over all datasets, on the normalised scales that all of its runs have.

    An algorithm is left out where it lacks a dataset, or where its datasets were trained with different seeds.
    """
    datasets = list(dict.fromkeys(data for data, _ in rows))
    found: list[dict[str, Any]] = []
    for algorithm in dict.fromkeys(name for _, name in rows):
        table = [rows.get((data, algorithm), ()) for data in datasets]
        seeds = {tuple(run.seed for run in row) for row in table}
        if len(datasets) < 2 or len(seeds) > 1 or () in seeds:
            continue
        shared = [s for s in SCALES if s != "raw" and all(s in run.scores for row in table for run in row)]
        scores = {
            scale: score_over_seeds(
                np.array([[run.scores[scale] for run in row] for row in table]).T,
                generator=numpy_stream(seed, "offline-table", "all", algorithm, scale),
            )
            for scale in shared
        }
        found.append({"algorithm": algorithm, "seeds": list(seeds.pop()), "datasets": datasets, "scores": scores})
    return found


def _over_seeds(values: Sequence[float], seed: int, *names: str) -> Bootstrap:
    return score_over_seeds(values, generator=numpy_stream(seed, "offline-table", *names))


# --- who is better --------------------------------------------------------------------------------------------------


def compare(one: Sequence[OfflineRun], other: Sequence[OfflineRun]) -> dict[str, Any] | None:
    """Compare two algorithms on one dataset, seed by seed, on the dataset's own scale (raw where it has none).

    Returns names, scale, seeds, the mean difference with its Student interval, and the verdict; None without a common
    seed.
    """
    beside = {run.seed: run for run in other}
    pairs = [(run, beside[run.seed]) for run in one if run.seed in beside]
    if not pairs:
        return None
    scale = "dataset" if all("dataset" in run.scores for pair in pairs for run in pair) else "raw"
    names = (one[0].data, one[0].algorithm, other[0].algorithm)
    found = paired_difference([a.scores[scale] - b.scores[scale] for a, b in pairs])
    return {
        "data": names[0],
        "algorithm": names[1],
        "than": names[2],
        "scale": scale,
        "seeds": [run.seed for run, _ in pairs],
        "difference": found,
        "verdict": verdict(found),
    }


def best_of(rows: Mapping[tuple[str, str], Sequence[OfflineRun]], data: str, names: Sequence[str]) -> str | None:
    """Algorithm with the largest interquartile mean of returns on a dataset; None without any.

    The best of several that differ only by chance is lucky, so a comparison with it is biased against the other.
    """
    returns = {
        name: np.array([run.scores["raw"] for run in rows[data, name]]) for name in names if (data, name) in rows
    }
    return max(returns, key=lambda name: interquartile_mean(returns[name])) if returns else None


def paired_difference(differences: Sequence[float]) -> dict[str, Any]:
    """Mean of paired differences with its 95 % Student interval; both ends are NaN for a single seed."""
    if len(differences) < 2:
        return {"n": 1, "value": differences[0], "lo": math.nan, "hi": math.nan, "method": "student"}
    found = mean_interval(differences)
    return {"n": found["n"], "value": found["mean"], "lo": found["lo"], "hi": found["hi"], "method": found["method"]}


def verdict(found: Mapping[str, Any]) -> str:
    """Whether a difference excludes zero; open where a single seed gives no interval."""
    if found["n"] < 2:
        return "open"
    return "better" if found["lo"] > 0 else "worse" if found["hi"] < 0 else "within the interval"
