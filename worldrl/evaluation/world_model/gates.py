"""Validation gates: numbers that a world model must reach before a policy may train in it.

Reinforcement learning exploits every error of its simulator. A gate on a rate fails only where the whole 95 % interval is below the
threshold: from few episodes, good and fair models are indistinguishable, and gates that fail by chance get switched off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from worldrl.core.errors import GateError, SettingError
from worldrl.core.statistics.intervals import Rate
from worldrl.core.types import Episode
from worldrl.evaluation.world_model.rollout_error import (
    action_swap_ratio,
    closed_loop_psnr,
    outcome_report,
    outcomes,
    padded_actions,
    replay,
    static_psnr,
    whole_chunks,
)
from worldrl.rewards.success import SuccessRule
from worldrl.world_models.loading import AnyVideoModel


@dataclass
class GateThresholds:
    """Least values; a rate (recall, precision) fails only with its whole interval below."""

    psnr: float = 22.0  # closed-loop PSNR (dB) after 32 control steps.
    # closed-loop PSNR (dB) after 32 control steps of the worst further camera; of models that have one.
    view_psnr: float = 20.0
    action_swap_ratio: float = 1.5  # error with another episode's actions over the error with the true ones.
    static_psnr: float = 24.0  # PSNR (dB) between the first frame and the image after 32 steps of holding still.
    # share of really successful episodes whose true actions are imagined to succeed. Low: one round of GRPO gained 36
    # points with a recall of 0.21.
    recall: float = 0.25
    precision: float = 0.6  # share of imagined successes that were real.

    def __post_init__(self) -> None:
        for name in ("recall", "precision"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"thresholds.{name} must be in [0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class Gate:
    """One measured gate."""

    name: str
    value: float  # NaN where it could not be measured.
    threshold: float  # least value that passes.
    passed: bool  # ``value >= threshold``, of a rate ``hi >= threshold``; NaN fails.
    meaning: str
    advice: str  # what to do after a failure.
    lo: float | None = None  # lower end of a rate's 95 % interval; ``hi`` its upper end.
    hi: float | None = None

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "not measurable"
        interval = "" if self.lo is None or self.hi is None else f" [{self.lo:.2f}, {self.hi:.2f}]"
        return f"{self.value:.3g}{interval}"


MEANING = {
    "psnr": "closed-loop image similarity after 32 control steps (dB), held-out episodes",
    "view_psnr": "the same, of the worst further camera",
    "action_swap_ratio": "error with another episode's actions over the error with the true ones",
    "static_psnr": "similarity (dB) to the first frame after 32 steps of holding still",
    "recall": "really successful episodes whose true actions the model imagines to succeed",
    "precision": "imagined successes that were real, true actions replayed",
    "confirmed": "imagined successes of this policy that the simulator confirmed with the same actions",
}
ADVICE = {
    "psnr": "train longer (training.steps) or on more rollouts",
    "view_psnr": "train longer (training.steps); a frame codec that was trained on the main camera alone blurs other views",
    "action_swap_ratio": "the model ignores its actions: train longer (training.steps), or raise training.event_share",
    "static_psnr": "raise training.static_share",
    "recall": "record more episodes that succeed, raise training.event_share, train longer (training.steps)",
    "precision": "record more near misses, raise target_precision, or the frames that make a success "
    "(model.outcome.debounce; train-vla: world_model.outcome.debounce)",
    "confirmed": "record more near misses whose actions do not show the outcome (train-vla: collection.expert_episodes, "
    "collection.policy_episodes), train longer (training.steps)",
}
ELSEWHERE = (
    "training.* is scratch.training.* in the first round of train-vla start=scratch; with backbone=wan training.* and model.* "
    "are wan.training.* and wan.model.*"
)
"""Other places of the settings in :data:`ADVICE`; these are of ``train-world-model`` unless marked ``train-vla``."""
RECORDING = "collection.expert_episodes records more episodes that succeed, collection.policy_episodes more near misses"
"""What records more where a simulator is at hand."""


def measure_gates(
    model: AnyVideoModel, episodes: Sequence[Episode], rule: SuccessRule, thresholds: GateThresholds, *, seed: int
) -> tuple[list[Gate], dict[str, Any]]:
    """Measure every gate on episodes that are held out from training, successes and failures; ``seed`` is of the model's noise.

    Returns the gates and all metrics; rates have intervals. Raises SettingError (there is no episode).
    """
    from worldrl.evaluation.world_model.further import further_errors

    if not episodes:
        raise SettingError("no episode is held out for the gates; raise held_out, or record more episodes")
    steps = whole_chunks(max(map(len, episodes)), model.chunk_length)
    actions = np.stack([padded_actions(episode, steps) for episode in episodes])
    result = replay(model, episodes, actions, seed=seed)
    actual = np.array([episode.success for episode in episodes])
    report = outcome_report(outcomes(result, rule), actual)
    psnrs = closed_loop_psnr(result) | further_errors(result)
    values = {
        "psnr": psnrs.get("closed_loop.psnr@32", float("nan")),
        "action_swap_ratio": action_swap_ratio(model, episodes, steps, seed=seed, true=result),
        "static_psnr": static_psnr(model, episodes, 4 * model.chunk_length, seed=seed),
    }
    if result.further:
        values["view_psnr"] = min(psnrs.get(f"closed_loop.psnr@32.{name}", float("nan")) for name in result.further)
    rates = {name: report[name] for name in ("recall", "precision")}
    return make_gates(values | rates, thresholds), {**values, **psnrs, **report}


def make_gates(measured: Mapping[str, float | Rate | None], thresholds: GateThresholds) -> list[Gate]:
    """Compare measured values with thresholds."""
    return [judge(name, measured[name], limit) for name, limit in asdict(thresholds).items() if name in measured]


def judge(name: str, measured: float | Rate | None, threshold: float) -> Gate:
    """Compare a number or a rate with a threshold; an unmeasured value (NaN, None) fails."""
    if measured is None or isinstance(measured, (int, float)):
        value = math.nan if measured is None else measured
        return Gate(name, value, threshold, value >= threshold, MEANING[name], ADVICE[name])
    value, lo, hi = (measured[key] for key in ("rate", "lo", "hi"))
    return Gate(name, value, threshold, hi >= threshold, MEANING[name], ADVICE[name], lo, hi)


def confirmed_gate(precision: Rate | None, threshold: float) -> Gate:
    """Gate on imagined successes of the policy to be trained, replayed action by action in the simulator.

    The other gates replay recorded actions, whose later part may reveal the outcome of the earlier; here the policy acts on imagined
    images. Without any imagined success the gate is not measurable and fails.
    """
    return judge("confirmed", precision, threshold)


def require(gates: Sequence[Gate], *, use: str = "improve a policy in", remarks: Sequence[str] = (ELSEWHERE,)) -> None:
    """Raise GateError naming each failed gate, its number, its threshold and what to do; ``use`` ends its first statement."""
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        lines = [f"{g.name} is {g}, needs {g.threshold:.3g} ({g.meaning}): {g.advice}" for g in failed]
        raise GateError(
            f"the world model is not good enough to {use}:\n  "
            + "\n  ".join(lines)
            + "\n  or continue with gates=warn"
            + "".join(f"\n  ({remark})" for remark in remarks)
        )
