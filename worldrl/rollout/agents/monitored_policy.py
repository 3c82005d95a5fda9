"""A policy with a monitor of its running episodes, and on demand with an expert that corrects them (RaC, 2509.07953).

The monitor (:mod:`worldrl.rollout.agents.monitor`) changes no action. With ``intervene`` an alarm returns the simulator to
the last decision whose score was not above the limit, else to the episode's beginning. There the scripted expert takes
over to the end: RaC's order, first back to a familiar state, then the correction. RaC's people rewind a real robot by
hand; a simulator is set back in one step, so the way back is no data here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.types import PolicyObs
from worldrl.rollout.agents.monitor import Embeddings, Monitor, unit
from worldrl.rollout.agents.policy_actor import ActingPolicy, ActorState, PolicyActor
from worldrl.rollout.real.rows import Actor, Row, Takeover
from worldrl.rollout.real.specs import Monitored


@dataclass(frozen=True)
class MonitoredPolicyActor(PolicyActor):
    """A policy with the monitor in the folder ``monitor``; the scripted expert corrects it where ``intervene``."""

    kind: ClassVar[str] = "monitored-policy"
    monitor: str = ""
    intervene: bool = False

    def build(self) -> Actor:
        """Load policy and monitor, inside the worker."""
        return MonitoredPolicy(self)


@dataclass
class _EpisodeState(ActorState):
    """One episode's embeddings so far, and the newest state of the simulator below the limit, with its step."""

    seen: list[Embeddings] = field(default_factory=list[Embeddings])
    familiar: tuple[int, Mapping[str, Any]] | None = None


class MonitoredPolicy(ActingPolicy):
    """Scores each decision."""

    def __init__(self, spec: MonitoredPolicyActor) -> None:
        super().__init__(spec)
        self._monitor, self._expert = Monitor.load(Path(spec.monitor)), _expert() if spec.intervene else None
        policy: Any = self._policy
        self._embed: Callable[[PolicyObs], Tensor] = policy.embed

    def begin(self, row: Row) -> None:
        """Start without a score."""
        super().begin(row)
        facts = self._monitor.facts
        row.monitored = Monitored(facts.tasks[row.spec.task].limit, facts.every)
        row.actor_state = _EpisodeState(**vars(row.actor_state))

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Decide as the policy alone, and score what it observed."""
        with torch.inference_mode():
            embeddings = unit(self._embed(self._shown(rows)).float().cpu().numpy())
        for row, embedding in zip(rows, embeddings, strict=True):
            self._score(row, embedding)
        return super().act(rows)

    def _score(self, row: Row, embedding: Embeddings) -> None:
        state, before = row.actor_state, row.monitored
        if before is None:  # begin() has made it
            raise SettingError("MonitoredPolicy: begin(row) comes before act([row])")
        state.seen.append(embedding)
        score = self._monitor.score(row.spec.task, state.seen)
        row.monitored = replace(before, score=(*before.score, score))
        if self._expert is None:
            return
        if state.familiar is None or score <= before.limit:
            state.familiar = len(before.score) * before.every, row.env.unwrapped.get_state()
        if score > before.limit:
            step, earlier = state.familiar
            row.takeover = Takeover(earlier, step, self._expert)


def _expert() -> Actor:
    from worldrl.rollout.agents.actors import ExpertActor

    return ExpertActor().build()
