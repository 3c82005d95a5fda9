"""Several policies by their imagined success from the same start frames, beside real outcomes where some are known.

A file of real outcomes is CSV with the header ``policy,episode,success``: a policy as it was named to the command, the
number of its trial, and 0 or 1. Trials are of the robot; they need not begin at the recorded start frames.

Shapes legend: ``P`` policies, ``E`` start frames.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, nearest
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.bootstrap import bootstrap
from worldrl.core.statistics.intervals import mean_interval, paired, pearson, wilson
from worldrl.core.statistics.ranking import mean_maximum_rank_violation, probability_best, spearman

HEADER = ["policy", "episode", "success"]
OUTCOMES = {"1": True, "0": False, "true": True, "false": False}
LEAST_POLICIES = 5
"""A correlation of fewer says next to nothing: of four, an r of 0.9 has an interval from below 0 on."""

Outcomes = Mapping[str, Mapping[int, bool]]
"""Policy → number of its trial → whether it succeeded."""


def labels_of(folders: Sequence[str]) -> list[str]:
    """Short names of folders: their paths without the parts that all begin or all end with."""
    parts = [Path(folder).parts for folder in folders]
    first = _shared(parts)
    last = _shared([part[first:][::-1] for part in parts])
    return [str(Path(*part[first : len(part) - last])) for part, folder in zip(parts, folders, strict=True)]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    count = 0
    while all(len(part) > count + 1 for part in parts) and len({part[count] for part in parts}) == 1:
        count += 1
    return count


def read_outcomes(file: Path, names: Mapping[str, str]) -> Outcomes:
    """Read real outcomes; ``names`` maps what may stand in the column ``policy`` to the policy's label.

    Raises ArtefactError (the file cannot be read, or a line of it is not as the module says; names the line).
    """
    found, seen = dict[str, dict[int, bool]](), dict[tuple[str, int], int]()
    for number, line in outcome_lines(file, HEADER):
        label, episode, success = _row(line, names, f"outcomes: {file} line {number}")
        if (label, episode) in seen:
            raise ArtefactError(
                f"outcomes: {file} line {number}: episode {episode} of {label} stands in line {seen[label, episode]}, too"
            )
        seen[label, episode] = number
        found.setdefault(label, {})[episode] = success
    if not found:
        raise ArtefactError(f"outcomes: {file} holds no outcome; give a line for each real trial")
    return found


def outcome_lines(file: Path, header: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Read a CSV file of outcomes: number and values of each line after ``header``, blank lines left out.

    Raises ArtefactError (the file cannot be read, begins otherwise, or a line has another number of values).
    """
    try:
        lines = list(csv.reader(file.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArtefactError(f"outcomes: {file} cannot be read as CSV ({error})") from error
    if not lines or [name.strip() for name in lines[0]] != list(header):
        raise ArtefactError(
            f"outcomes: {file} line 1: must be {','.join(header)}, got {','.join(lines[0][:4] if lines else [])!r}"
        )
    for number, line in enumerate(lines[1:], start=2):
        if line and len(line) != len(header):
            raise ArtefactError(f"outcomes: {file} line {number}: needs {len(header)} values, got {len(line)}")
        if line:
            yield number, [value.strip() for value in line]


def as_success(text: str, where: str, name: str = "success") -> bool:
    """Read 0 or 1 of a file of outcomes; ArtefactError for anything else."""
    if text.lower() not in OUTCOMES:
        raise ArtefactError(f"{where}: {name} must be 0 or 1, got {text!r}")
    return OUTCOMES[text.lower()]


def _row(line: Sequence[str], names: Mapping[str, str], where: str) -> tuple[str, int, bool]:
    policy, episode, success = line
    if policy not in names:
        raise ArtefactError(f"{where}: policy {policy!r} is not ranked here{nearest(policy, names)}")
    if not (episode.isascii() and episode.isdigit() and len(episode) < 10):
        raise ArtefactError(f"{where}: episode must be a whole number of at least 0, got {episode!r}")
    return names[policy], int(episode), as_success(success, where)


def ranked(
    labels: Sequence[str], success: NDArray[np.bool_], task: Sequence[str], outcomes: Outcomes | None, *, seed: int
) -> dict[str, Any]:
    """Metrics of a ranking by imagined outcomes ``[P, E]`` from start frames of ``task`` (``E`` names).

    Returns ``policies`` in the given order, ``order`` with the best first, ``pairs`` (b minus a), and
    ``calibration``.
    """
    best = probability_best(success, task, generator=numpy_stream(seed, "rank"))
    names, tasks = np.asarray(task), sorted(set(task))
    policies = [
        {
            "policy": label,
            "imagined": wilson(int(row.sum()), row.size),
            "probability_best": float(share),
            "tasks": {name: wilson(int(row[names == name].sum()), int((names == name).sum())) for name in tasks},
            **({"real": real_rate(outcomes[label])} if outcomes and label in outcomes else {}),
        }
        for label, row, share in zip(labels, success, best, strict=True)
    ]
    order = sorted(range(len(labels)), key=lambda one: (-success[one].sum(), labels[one]))
    return {
        "policies": policies,
        "order": [labels[one] for one in order],
        "pairs": [
            {"a": labels[a], "b": labels[b], **paired(success[a], success[b])}
            for a, b in combinations(sorted(range(len(labels)), key=lambda one: labels[one]), 2)
        ],
        "calibration": calibration(policies, seed=seed) if outcomes else None,
    }


def real_rate(trials: Mapping[int, bool]) -> dict[str, Any]:
    """Wilson rate of a policy's real trials."""
    return {**wilson(sum(trials.values()), len(trials))}


def calibration(policies: Sequence[Mapping[str, Any]], *, seed: int) -> dict[str, Any]:
    """How imagined success follows real success, over the policies with a ``real`` rate.

    ``bias`` is the mean of imagined minus real. A number that too few policies leave undefined is None.
    """
    known = [one for one in policies if "real" in one]
    pairs, pearson_r = _pairs(known), correlation(known)
    return {
        "policies": len(known),
        "pearson": pearson_r,
        "spearman": {**spearman(*pairs.T)} if pearson_r else None,
        "mmrv": bootstrap(pairs, _violation, generator=numpy_stream(seed, "mmrv")) if pearson_r else None,
        "bias": mean_interval(pairs[:, 0] - pairs[:, 1]) if len(known) > 1 else None,
    }


def correlation(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Pearson's r of the rates ``imagined`` and ``real`` over policies; None where it is undefined."""
    pairs = _pairs(policies)
    if len(pairs) < LEAST_POLICIES or not np.ptp(pairs, axis=0).all():
        return None
    return {**pearson(*pairs.T)}


def _pairs(policies: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Rates ``imagined`` and ``real`` of each policy, ``[P, 2]``."""
    rates = [[one[name]["rate"] for name in ("imagined", "real")] for one in policies]
    return np.array(rates, np.float64).reshape(-1, 2)


def _violation(pairs: NDArray[np.float64]) -> float:
    return mean_maximum_rank_violation(*pairs.T)
