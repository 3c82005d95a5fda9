"""Compares two policies, or two methods over several trainings, on the same episodes, which are paired by identity.

Tasks have corrected p-values.

Holm: S. Holm, Scandinavian Journal of Statistics 6 (1979): with the p-values sorted upwards, the i-th of m is
multiplied by ``m - i`` (i from 0), and the results are made monotone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldrl.core.errors import ProtocolError
from worldrl.core.statistics.intervals import Paired, Rate, mean_interval, paired, wilson
from worldrl.evaluation.policy.protocol import require_same
from worldrl.evaluation.policy.result import EvalResult, differences


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values by name: the chance of any false difference stays below 5 %; values are at most 1."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, min(1.0, p[name] * (len(p) - rank)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p}


@dataclass(frozen=True)
class Comparison:
    """``b`` against ``a`` on the same episodes."""

    a: EvalResult
    b: EvalResult
    overall: Paired
    tasks: Mapping[str, Paired]  # per task; ``p`` is unadjusted.
    p_holm: Mapping[str, float]  # p-values per task, adjusted for the number of tasks.
    at_end: bool  # success at the end is compared, instead of success at any frame.

    def rates(self, task: str | None = None) -> tuple[Rate, Rate]:
        """Success rates of ``a`` and ``b``, of one task or of all."""
        return self.a.rate(task, at_end=self.at_end), self.b.rate(task, at_end=self.at_end)

    def outcomes(self) -> tuple[list[bool], list[bool]]:
        """Success of ``a`` and of ``b`` in the same episodes."""
        return _outcomes(self.a, self.b, None, self.at_end)

    def metrics(self) -> dict[str, Any]:
        """Content of ``result.json``."""
        before, after = self.rates()
        return {
            "a": self.a.policy,
            "b": self.b.policy,
            "a_hash": self.a.policy_hash,
            "b_hash": self.b.policy_hash,
            "at_end": self.at_end,
            "before": before,
            "after": after,
            "paired": self.overall,
            "tasks": {task: self._task_metrics(task) for task in self.tasks},
            "valid": self.a.valid and self.b.valid,
            "notes": differences(self.a.provenance, self.b.provenance),
        }

    def _task_metrics(self, task: str) -> dict[str, Any]:
        before, after = self.rates(task)
        return {"before": before, "after": after, "paired": self.tasks[task], "p_holm": self.p_holm[task]}


def compare(a: EvalResult, b: EvalResult, *, at_end: bool = False) -> Comparison:
    """Compare an earlier evaluation ``a`` with a later one ``b``, episode by episode.

    Raises ProtocolError: the protocols differ (each field is named), or ``at_end`` was not measured.
    """
    require_same(a.protocol, b.protocol)
    if at_end:
        a.require_end()
    overall = paired(*_outcomes(a, b, None, at_end))
    tasks = {task: paired(*_outcomes(a, b, task, at_end)) for task in a.protocol.tasks}
    return Comparison(a, b, overall, tasks, holm({task: pair["p"] for task, pair in tasks.items()}), at_end)


def pooled(pairs: Sequence[Comparison]) -> dict[str, Any]:
    """Compare two methods over several trainings of each: ``result.json`` of at least two comparisons.

    ``paired`` is over all episodes together, for these trainings. ``trainings`` is the mean of the differences of
    pairs with its Student interval, for trainings of other seeds. Raises ProtocolError (the protocols of two pairs
    differ by more than their seeds, or an evaluation appears twice on one side).
    """
    first = pairs[0].a.protocol
    for pair in pairs[1:]:
        require_same(first, replace(pair.a.protocol, seed=first.seed))
    for side in ("a", "b"):
        digests = [getattr(pair, side).policy_hash for pair in pairs]
        if twice := sorted({digest for digest in digests if digests.count(digest) > 1}):
            raise ProtocolError(
                f"{side}: policy {twice[0][:12]} appears twice, and would be counted twice; name each once"
            )
    outcomes = [pair.outcomes() for pair in pairs]
    a, b = ([hit for pair in outcomes for hit in pair[side]] for side in (0, 1))
    return {
        "before": wilson(sum(a), len(a)),
        "after": wilson(sum(b), len(b)),
        "paired": paired(a, b),
        "trainings": mean_interval([pair.overall["diff"] for pair in pairs]),
        "valid": all(pair.a.valid and pair.b.valid for pair in pairs),
        "at_end": pairs[0].at_end,
        "pairs": [pair.metrics() for pair in pairs],
    }


def _outcomes(a: EvalResult, b: EvalResult, task: str | None, at_end: bool) -> tuple[list[bool], list[bool]]:
    name = "success_at_end" if at_end else "success_once"
    first, second = ({o.spec.key: getattr(o, name) for o in result.of_task(task)} for result in (a, b))
    if first.keys() != second.keys():
        raise ProtocolError(f"compare: the results hold different episodes: {sorted(first.keys() ^ second.keys())[:3]}")
    return list(first.values()), [second[key] for key in first]
