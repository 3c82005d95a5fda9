"""A measurement against an earlier result that ends as soon as the comparison is decided.

The episodes and their largest number are fixed by the protocol, and so is the order of the comparison. Tasks are mixed in this
order. An episode that finishes early, as a success does, is not counted before its turn.

Rules of pairs compare the same episodes. STEP compares equal numbers of episodes of one task with different initial states: its false
alarms are computed for one success rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream_seed
from worldrl.core.statistics.sequential import Boundary, Decision, StoppingRule, boundary, decide
from worldrl.core.statistics.sequential_budget import BudgetRule, budget_rule
from worldrl.core.statistics.sequential_step import StepRule, step_rule
from worldrl.evaluation.policy.protocol import EvalProtocol, require_other_states, require_same
from worldrl.evaluation.policy.result import EvalResult
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec

Key = tuple[str, int, int, int]
RULES: Mapping[str, Callable[[int, float], StoppingRule]] = {
    Boundary.name: boundary,
    BudgetRule.name: budget_rule,
    StepRule.name: step_rule,
}
"""Sequential tests by name, made from the largest number of episodes per policy and the probability of a false alarm."""


class ComparisonDecided(Exception):  # noqa: N818  (not an error: the measurement is complete)
    """The comparison is decided; ``decision`` holds the verdict."""

    def __init__(self, comparison: SequentialComparison, decision: Decision) -> None:
        super().__init__(decision["verdict"])
        self.comparison, self.decision = comparison, decision


@dataclass(frozen=True)
class SequentialComparison:
    """A baseline ``a``, the rule, and the protocol of the new policy ``b``."""

    baseline: EvalResult
    protocol: EvalProtocol
    rule: StoppingRule
    order: tuple[EpisodeSpec, ...]  # episodes of the new measurement in the order of the comparison.
    # episodes of the baseline; each is compared with the one at the same place in ``order``.
    baseline_order: tuple[EpisodeSpec, ...]

    def arrange(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
        """Put episodes that are still to be run into the order of the comparison."""
        wanted = {spec.key for spec in specs}
        return [spec for spec in self.order if spec.key in wanted]

    def decision(self, outcomes: Sequence[EpisodeOutcome]) -> Decision:
        """Compare the episodes so far, up to the first missing one in the order."""
        ours: dict[Key, bool] = {outcome.spec.key: outcome.success_once for outcome in outcomes}
        theirs: dict[Key, bool] = {o.spec.key: o.success_once for o in self.baseline.outcomes}
        a: list[bool] = []
        b: list[bool] = []
        for spec, before in zip(self.order, self.baseline_order, strict=True):
            if spec.key not in ours:
                break
            a.append(theirs[before.key])
            b.append(ours[spec.key])
        return decide(a, b, self.rule)

    def check(self, outcomes: Sequence[EpisodeOutcome]) -> None:
        """Raise :class:`ComparisonDecided` where the comparison is decided."""
        decision = self.decision(outcomes)
        if decision["verdict"] != "not decided":
            raise ComparisonDecided(self, decision)

    def metrics(self, decision: Decision) -> dict[str, Any]:
        """Part of ``result.json`` about the comparison."""
        return {"against": self.baseline.policy, "against_hash": self.baseline.policy_hash, **decision}


def sequential_against(
    baseline: EvalResult, protocol: EvalProtocol, *, alpha: float = 0.05, rule: str = Boundary.name
) -> SequentialComparison:
    """Prepare a comparison with a finished result; ``alpha`` is the probability of a verdict where neither policy is better.

    Raises ProtocolError: the protocols differ; for STEP, in more than their initial states, or they share some.
    Raises SettingError: more episodes than a sequential test is calibrated for; for STEP, more tasks than one.
    """
    if rule == StepRule.name:
        _require_one_task(protocol)
        require_other_states(baseline.protocol, protocol)
    else:
        require_same(baseline.protocol, protocol)
    order, before = _order(protocol), _order(baseline.protocol)
    return SequentialComparison(baseline, protocol, RULES[rule](len(order), alpha), order, before)


def _order(protocol: EvalProtocol) -> tuple[EpisodeSpec, ...]:
    specs = protocol.specs()
    return tuple(sorted(specs, key=lambda spec: stream_seed(protocol.seed, "race", *spec.stream_names)))


def _require_one_task(protocol: EvalProtocol) -> None:
    if len(protocol.tasks) > 1:
        raise SettingError(
            f"stopping: {StepRule.name} compares episodes of one success rate, so of one task, got "
            f"{len(protocol.tasks)}; give tasks=[{protocol.tasks[0]}], or {BudgetRule.name} and the same initial states"
        )
