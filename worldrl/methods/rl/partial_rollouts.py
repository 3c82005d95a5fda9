"""Partial rollouts: an iteration stops before all of its rollouts are over, and the others continue in later ones.

The environment's rows are slots of ``G`` rows, each for a group::

    iteration t     free slots begin new groups ─► all rows advance ─► complete groups are learned from and leave their slots
    iteration t+1   the groups under way continue with the weights of then; the free slots begin new ones

So all rows stay at work while a few long rollouts end. Each decision keeps the log-probability under the weights that
drew it, and losses with a ratio correct for their age. A rollout depends on its names and on those weights, never on
timing; checkpoints hold the rollouts under way.

Shapes legend: ``B`` rollouts, ``N`` groups, ``G`` rollouts of a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.interfaces import Logs, Policy
from worldrl.core.rng import stream_seed
from worldrl.core.types import ResetRecord
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.interfaces import Collected, Request, given
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import Exploration
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, RolloutsUnderWay


def iteration_ends(complete: int, slots: int, advanced: int, *, enough: int, segment: int) -> bool:
    """Whether an iteration stops after ``advanced`` chunks, with ``complete`` groups in ``slots``.

    Equation: complete = slots, or complete >= 1 and (complete >= enough or advanced >= segment > 0)
    Paper: APRIL (2509.18521) for ``enough``; UloRL (2507.19766) and C3PO++ (2510.18855) for ``segment``
    """
    stops = complete >= enough or 0 < segment <= advanced
    return complete == slots or (complete >= 1 and stops)


class Slots:
    """Groups of ``size`` rollouts, each in a slot of consecutive rows of the environment."""

    def __init__(self, env: WorldModelVecEnv, policy: Policy, exploration: Exploration, size: int) -> None:
        self.rollouts = RolloutsUnderWay(env, policy, exploration)
        self.size = size
        self.count = env.num_envs // size
        self.groups: dict[int, tuple[int, int]] = {}  # by slot: id of its start record, iteration in which it began

    @property
    def free(self) -> list[int]:
        """Slots without a group."""
        return [slot for slot in range(self.count) if slot not in self.groups]

    @property
    def complete(self) -> list[int]:
        """Slots all of whose rollouts are over."""
        running = self.rollouts.running
        return [slot for slot in sorted(self.groups) if not running[self.rows([slot])].any()]

    def rows(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """Rows of the environment that belong to ``slots``."""
        return (np.array(slots, np.int64)[:, None] * self.size + np.arange(self.size)).ravel()

    def begin(self, starts: Tensor, records: list[ResetRecord], seed: int, iteration: int) -> None:
        """Begin a group in each free slot, from ``starts`` ``[N]``, with a record for each of its rows."""
        slots = self.free
        if slots:
            self.rollouts.begin(self.rows(slots), records, seed)
        self.groups.update({slot: (start, iteration) for slot, start in zip(slots, starts.tolist(), strict=True)})

    def take(self, iteration: int) -> tuple[Request, ImaginedRollouts]:
        """Empty the slots that are complete; return their groups and rollouts, numbered anew."""
        slots = self.complete
        starts, begun = torch.tensor([self.groups.pop(slot) for slot in slots]).T
        came = Request.make(iteration, starts, torch.full_like(starts, self.size), begun)
        return came, self.rollouts.take(self.rows(slots), came.group)

    def state_dict(self) -> dict[str, Any]:
        """Groups and rollouts under way."""
        groups = [[slot, *group] for slot, group in sorted(self.groups.items())]
        return {"groups": groups, "rollouts": self.rollouts.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore them, copies of their own."""
        self.groups = {slot: (start, begun) for slot, start, begun in state_dict["groups"]}
        self.rollouts.load_state_dict(state_dict["rollouts"])


@dataclass(frozen=True, kw_only=True)
class PartialImagination(PolicyImagination):
    """Imagined rollouts of a policy that may last for several iterations."""

    lasting: ClassVar[bool] = True
    slots: Slots  # what is under way.
    enough: int  # complete groups that end an iteration.
    segment: int  # chunks that end it; 0: none do.

    def imagine(self, request: Request) -> FilterResult:
        """Begin the first of the groups that are asked for where slots are free, and let all advance."""
        k, slots = request.iteration, self.slots
        begun = request.select(request.group < len(slots.free))
        seed = stream_seed(self.seed, self.imagining, k)
        slots.begin(request.starts[: len(slots.free)], self.start_records(begun), seed, k)
        advanced = 0
        while not iteration_ends(len(slots.complete), slots.count, advanced, enough=self.enough, segment=self.segment):
            slots.rollouts.advance()
            advanced += 1
        came, rollouts = slots.take(k)
        return FilterResult(rollouts, came=came)

    def reported(self, collected: Collected[FilterResult]) -> Logs:
        """Say also how many groups came in, and how many iterations ago they began."""
        came = given(collected.experience.came, "its groups", "a partial rollout")
        age = came.iteration - given(came.begun, "the iteration of its beginning", "a partial rollout").float()
        logs = super().reported(collected)
        return logs | {"grpo/groups": torch.tensor(float(len(age))), "grpo/age": age.mean()}

    def under_way(self) -> dict[str, Any]:
        """State of the rollouts that are not over."""
        return self.slots.state_dict()

    def carry_on(self, under_way: Mapping[str, Any]) -> None:
        """Continue with them; empty: with none."""
        self.slots.load_state_dict(under_way or {"groups": [], "rollouts": {}})


def as_complete(method: Method, iteration: int, logs: Logs) -> tuple[Request, Collected[FilterResult]]:
    """Imagine with the weights of now; what comes in are the groups that are complete."""
    collected = method.schedule(method.source, method.request(iteration), method.mix, logs)
    return collected.experience.came, collected
