"""A measurement against an earlier result that ends as soon as the comparison is decided.

The episodes are those of the protocol, their largest number is fixed by it before the first one, and they are compared
in an order that is a function of the protocol alone. That matters twice: tasks come mixed, and an episode that ends
early, which a success does, is not looked at before its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldrl.core.rng import stream_seed
from worldrl.core.sequential import Boundary, Decision, StoppingRule, boundary, decide
from worldrl.core.sequential_budget import BudgetRule, budget_rule
from worldrl.evaluation.protocol import EvalProtocol, require_same
from worldrl.evaluation.result import EvalResult
from worldrl.rollout.specs import EpisodeOutcome, EpisodeSpec

Key = tuple[str, int, int, int]
RULES: Mapping[str, Callable[[int, float], StoppingRule]] = {Boundary.name: boundary, BudgetRule.name: budget_rule}
"""Sequential tests by name, each made of the most pairs and the probability of a false alarm."""


class RaceOver(Exception):  # noqa: N818  (not an error: the measurement has its answer)
    """The comparison is decided; ``decision`` says how."""

    def __init__(self, race: Race, decision: Decision) -> None:
        super().__init__(decision["verdict"])
        self.race, self.decision = race, decision


@dataclass(frozen=True)
class Race:
    """A result to be compared with (``a``), and the rule; the new policy is ``b``.

    Attributes:
        baseline: the earlier result.
        rule: the sequential test.
        order: the protocol's episodes in the order of the comparison.
    """

    baseline: EvalResult
    rule: StoppingRule
    order: tuple[EpisodeSpec, ...]

    def arrange(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
        """Put episodes that are still to be run into the order of the comparison."""
        wanted = {spec.key for spec in specs}
        return [spec for spec in self.order if spec.key in wanted]

    def decision(self, outcomes: Sequence[EpisodeOutcome]) -> Decision:
        """Compare the episodes so far, up to the first in the order that is still missing."""
        ours: dict[Key, bool] = {outcome.spec.key: outcome.success_once for outcome in outcomes}
        theirs: dict[Key, bool] = {o.spec.key: o.success_once for o in self.baseline.outcomes}
        keys: list[Key] = []
        for spec in self.order:
            if spec.key not in ours:
                break
            keys.append(spec.key)
        return decide([theirs[key] for key in keys], [ours[key] for key in keys], self.rule)

    def check(self, outcomes: Sequence[EpisodeOutcome]) -> None:
        """End the measurement where the comparison is decided.

        Raises:
            RaceOver: it is.
        """
        decision = self.decision(outcomes)
        if decision["verdict"] != "not decided":
            raise RaceOver(self, decision)

    def metrics(self, decision: Decision) -> dict[str, Any]:
        """What ``result.json`` holds of the comparison."""
        return {"against": self.baseline.policy, "against_hash": self.baseline.policy_hash, **decision}


def race_against(
    baseline: EvalResult, protocol: EvalProtocol, *, alpha: float = 0.05, rule: str = Boundary.name
) -> Race:
    """Prepare a comparison with a finished result.

    Args:
        baseline: the earlier result.
        protocol: of the new measurement.
        alpha: probability of a verdict where neither policy is better.
        rule: a key of :data:`RULES`.

    Raises:
        ProtocolError: the protocols differ.
        SettingError: more episodes than a sequential test is calibrated for.
    """
    require_same(baseline.protocol, protocol)
    specs = protocol.specs()
    order = sorted(specs, key=lambda spec: stream_seed(protocol.seed, "race", *spec.stream_names))
    return Race(baseline, RULES[rule](len(specs), alpha), tuple(order))
