"""Asynchronous improvement with a fixed lag: another process imagines while the learner learns.

Version ``k`` is the policy after ``k`` iterations, ``s`` the staleness. Iteration ``t`` learns from the batch that version
``max(0, t - s)`` imagined::

    learner   asks for batch t + s with version t ─► waits for batch t ─► its steps make version t + 1
    process   imagines the batches in order, each with the version that it was asked with

A batch that is ready earlier waits, so that a result depends on the seed and ``s``, never on timing. A checkpoint holds
the requests of the batches under way and the weights that they were asked with; a resumed run imagines these again.
The rollouts hold the log-probabilities of the version that drew them: each loss with a ratio corrects for the lag.
Partial rollouts (``partial_rollouts``) continue with the version of each batch in which they advance.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs, TrainablePolicy
from worldrl.core.storage.jsonfile import write_json
from worldrl.methods.rl.config import PACE
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.imagining import ROWS, Imaginers, ImaginingProcess, policy_weights
from worldrl.methods.rl.interfaces import Collected, Evaluated, PolicyLoss, Request
from worldrl.methods.rl.losses import ratio_logs
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.trust import FilterResult

UNDERWAY = "underway"
SETTING = "improvement.grpo.staleness"
MEND = f"the same command resumes; a new run with {SETTING}=0 needs no other process"


@contextmanager
def imagined_ahead(
    method: Method,
    policy: TrainablePolicy,
    staleness: int,
    iterations: int,
    folder: Path,
    imaginers: Imaginers | None = None,
) -> Generator[Method]:
    """Let another process imagine for ``method``, and write its lag and speed into ``folder`` at the end.

    Equation: iteration t learns from the rollouts of version max(0, t - s)
    Paper: AReaL (2505.24298), its bound on staleness; the lag is fixed (ours)
    """
    ahead = Ahead(method, policy, staleness, iterations, folder / UNDERWAY, imaginers or ImaginingProcess)
    try:
        yield replace(
            method, arrival=ahead, loss=ahead.measured(method.loss), modules={**method.modules, "ahead": ahead}
        )
        write_json(folder / PACE, ahead.pace.summary(staleness))
    finally:
        ahead.process.close()


def mismatch(found: Evaluated) -> Logs:
    """How far the learning policy is from the version that drew the decisions: mean ratio of a token, KL of a decision.

    Equation: E[ρ_k] and E[Σ_k (ρ_k - 1 - log ρ_k)], ρ_k = π_θ / π_b of each token
    Paper: none
    """
    own = torch.ones(len(found.weight), dtype=torch.bool) if found.external is None else ~found.external.cpu()
    now, before = found.now.detach()[own], found.before[own]
    kl = ratio_logs(replace(found, now=now, before=before))["approx_kl"]
    return {"stale_ratio": (now - before).exp().mean(), "stale_kl": kl}


@dataclass
class Pace:
    """What a run tells of its lag and speed."""

    # by lag: batches, those that were measured, sum of their ratios, sum of their KL.
    lags: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    frames: int = 0  # imagined ones that were learned from.
    seconds: float = 0.0  # of wall time.
    waited: float = 0.0  # of them the learner asked for batches and waited for one.

    def arrived(self, lag: int, experience: FilterResult, waited: float) -> None:
        """Count a batch."""
        self.lags.setdefault(str(lag), [0, 0, 0.0, 0.0])[0] += 1
        self.frames += imagined_frames(experience)
        self.waited += waited

    def measured(self, lag: int, ratio: Tensor, kl: Tensor) -> None:
        """Add the mismatch of a batch, as its first gradient step found it."""
        row = self.lags[str(lag)]
        row[1:] = [row[1] + 1, row[2] + float(ratio), row[3] + float(kl)]

    def summary(self, staleness: int) -> dict[str, Any]:
        """Return the numbers of the report; times of iterations that a kill undid do not count."""

        def mean(total: float, count: float) -> float | None:
            return total / count if count else None

        return {
            "staleness": staleness,
            "lags": {
                lag: {"batches": int(batches), "ratio": mean(ratio, count), "kl": mean(kl, count)}
                for lag, (batches, count, ratio, kl) in self.lags.items()
            },
            "imagined_frames": self.frames,
            "wall_s": self.seconds,
            "waited_wall_s": self.waited,
        }


def imagined_frames(experience: FilterResult) -> int:
    """How many frames were imagined for rollouts that were running."""
    rollouts = experience.rollouts
    shown = rollouts.probability
    return int(rollouts.valid.sum()) * (1 if shown is None else shown.shape[-1])


class Ahead:
    """When batches are asked for, and which are under way; ``folder`` is for what travels between the processes."""

    def __init__(
        self,
        method: Method,
        policy: TrainablePolicy,
        staleness: int,
        iterations: int,
        folder: Path,
        imaginers: Imaginers,
    ) -> None:
        self.source: PolicyImagination = method.source  # pyright: ignore[reportAttributeAccessIssue]
        self.process = imaginers(self.source, folder, SETTING, mend=MEND)
        self.policy = policy
        self.staleness, self.iterations = staleness, iterations
        self.pace, self._clock = Pace(), 0.0
        self.pending: list[tuple[Request, int]] = []  # batches under way, the oldest first, and their versions
        self.weights: dict[int, dict[str, Any]] = {}  # of these versions
        self.under_way: Mapping[str, Any] = {}  # rollouts that the batch taken last left; empty: none
        self._sent = 0  # of the pending ones; the others were read from a checkpoint
        self._resumed = False  # from a checkpoint, and nothing was asked for since
        self._lag: int | None = None  # of a batch that no gradient step has measured yet

    def __call__(self, method: Method, iteration: int, logs: Logs) -> tuple[Request, Collected[FilterResult]]:
        """Ask for what is due, and wait for the iteration's batch."""
        began = time.monotonic()
        self._clock = self._clock or began
        self._ask(method, iteration)
        experience = self.process.take()
        waited = time.monotonic() - began
        request, version = self.pending.pop(0)
        self.under_way = experience.under_way
        self._sent -= 1
        self.weights = {known: self.weights[known] for _, known in self.pending}
        self._lag = iteration - version
        self.pace.arrived(self._lag, experience, waited)
        collected = Collected(experience, self.source.score(experience))
        logs.update({**self.source.reported(collected), f"{method.prefix}/lag": torch.tensor(float(self._lag))})
        return experience.came or request, collected

    def _ask(self, method: Method, iteration: int) -> None:
        """Ask for the batches up to ``staleness`` ahead with the weights of now; those of a checkpoint come first."""
        first = self.pending[-1][0].iteration + 1 if self.pending else iteration
        for number in range(first, min(iteration + self.staleness + 1, self.iterations)):
            if iteration not in self.weights:
                self.weights[iteration] = policy_weights(self.policy)
            self.pending.append((method.request(number), iteration))
        if self._resumed and self.under_way:
            self.process.carry_on(self.under_way)
        self._resumed = False
        for request, version in self.pending[self._sent :]:
            self.process.ask(request, version, self.weights[version])
        self._sent = len(self.pending)

    def measured(self, loss: PolicyLoss) -> PolicyLoss:
        """Let the first loss of each batch tell the mismatch, too: before any step on it."""

        def measure(found: Evaluated) -> tuple[Tensor, Logs]:
            value, logs = loss(found)
            if self._lag is None:
                return value, logs
            stale = mismatch(found)
            self.pace.measured(self._lag, stale["stale_ratio"], stale["stale_kl"])
            self._lag = None
            return value, {**logs, **stale}

        return measure

    def state_dict(self) -> dict[str, Any]:
        """Requests under way, the weights that imagine them, and the pace so far."""
        now = time.monotonic()
        self.pace.seconds += now - (self._clock or now)
        self._clock = now
        rows = [
            {"iteration": request.iteration, "version": version, **{name: getattr(request, name) for name in ROWS}}
            for request, version in self.pending
        ]
        weights = {str(version): known for version, known in self.weights.items()}
        return {"pending": rows, "weights": weights, "pace": vars(self.pace), "under_way": self.under_way}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore them; what was under way is asked for again."""
        self.pending = [
            (Request(row["iteration"], *(row[name] for name in ROWS)), row["version"]) for row in state_dict["pending"]
        ]
        self.weights = {int(version): known for version, known in state_dict["weights"].items()}
        self.pace, self.under_way = Pace(**state_dict["pace"]), state_dict.get("under_way", {})
        self._sent, self._resumed = 0, True
