"""A policy with a planner: its rollouts are imagined in a world model, and the best one's next chunk is executed.

At each decision the world model starts from the real frames. Imagined first are the policy's own greedy rollout and
the rest of the plan that is under way; if the better one reaches ``threshold``, no others are drawn. Otherwise all
candidates are rollouts of the policy with noise, which CEM or MPPI may refine. Below ``threshold`` the policy's own
chunk is executed, and no plan is kept. A decision's batch holds one episode: neighbours change none of its bits.

Shapes legend: ``N`` candidates, ``T`` control steps of a plan, ``L`` of a chunk, ``A`` numbers of an action.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.observation import STATE, images_among, stack_views
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord
from worldrl.data.windows.batch import actions_before
from worldrl.policies.token.policy import reads_waypoint
from worldrl.rollout.agents.policy_actor import ActingPolicy, ActorState, PolicyActor
from worldrl.rollout.imagined.candidates import Candidates
from worldrl.rollout.planning.best_of_n import Plan, best_of_n
from worldrl.rollout.planning.cem import cem
from worldrl.rollout.planning.config import Planner
from worldrl.rollout.planning.mppi import mppi
from worldrl.rollout.real.rows import Row
from worldrl.rollout.real.specs import PlannedChunks
from worldrl.world_models.loading import open_world_model


@dataclass
class _EpisodeState(ActorState):
    """One episode's first observation, all actions ``[T, A]`` that it has taken, and the rest of its plan ``[T, A]``."""

    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    taken: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    rest: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


class ActingPlanner(ActingPolicy):
    """Plans row by row."""

    def __init__(self, spec: PolicyActor, planner: Planner) -> None:
        super().__init__(spec)
        self._planner, self._config = planner, planner.config
        self._exploration = planner.config.exploration(waypoint=reads_waypoint(self._policy))
        device = torch.device(spec.device)
        self._model = open_world_model(Path(self._config.world_model), device).eval()
        self._model.compute_dtype = resolve_dtype(self._config.dtype, device)
        self._span = (self._model.memory_frames - 1) * self._model.frame_stride + 1
        self.images_needed = max(self.images_needed, self._span)

    def begin(self, row: Row) -> None:
        """Keep the first observation, and count from 0."""
        super().begin(row)
        row.actor_state = _EpisodeState(
            **vars(row.actor_state),
            first=row.obs,
            taken=np.zeros((0, self._policy.actions.size), np.float32),
            rest=torch.zeros(0, self._policy.actions.size),
        )
        row.planned = PlannedChunks()

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Keep what is executed."""
        executed = super().act(rows)
        for row, actions in zip(rows, executed, strict=True):
            state: _EpisodeState = row.actor_state
            state.taken = np.concatenate([state.taken, self._policy.actions.within(actions)])
            state.rest = state.rest[len(actions) :]
        return executed

    def decide(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Plan, or choose as the policy alone."""
        own = super().decide(rows)
        with torch.inference_mode():
            return np.stack([self._decide(row, chunk) for row, chunk in zip(rows, own, strict=True)])

    def _decide(self, row: Row, own: NDArray[np.float32]) -> NDArray[np.float32]:
        began_s, before = time.monotonic(), row.planned or PlannedChunks()
        plan = self._plan(row, own)
        planned = plan.score >= self._config.threshold
        row.actor_state.rest = plan.action if planned else plan.action[:0]
        seconds = (before.seconds or 0.0) + time.monotonic() - began_s
        row.planned = PlannedChunks(before.planned + planned, before.alone + (not planned), seconds)
        return plan.action[: len(own)].numpy() if planned else own

    def _plan(self, row: Row, own: NDArray[np.float32]) -> Plan:
        imagined, actions, rest = self._candidates(row), self._policy.actions, row.actor_state.rest
        given = [torch.from_numpy(actions.within(own)), *([rest] if len(rest) else [])]
        plans, scores = imagined.imagine(given)
        if scores.max() >= self._config.threshold:
            return best_of_n(plans, scores)
        drawn = imagined.imagine([rest[:0]] * (self._config.candidates - 1), self._exploration)
        plans, scores = (torch.cat(pair) for pair in zip((plans, scores), drawn, strict=True))
        if self._planner.name == "best_of_n":
            return best_of_n(plans, scores)
        low, high = (torch.from_numpy(bound) for bound in actions.bounds)
        found = {"bounds": (low, high), "generator": imagined.stream(self._planner.name)}
        if self._planner.name == "cem":
            return cem(plans, scores, imagined.score, self._config.cem, **found)
        return mppi(plans, scores, imagined.score, self._config.mppi, **found)

    def _candidates(self, row: Row) -> Candidates:
        """What imagines the row's plans, within its time limit."""
        model, chunks, frames, steps = self._model, self._config.horizon, None, len(row.actor_state.taken)
        if row.horizon is not None:
            left = row.horizon - steps
            chunks, frames = min(chunks, -(-left // model.chunk_length)), left // model.frame_stride
        named = partial(stream, row.spec.seed, "plan", *row.spec.stream_names, steps)
        return Candidates(model, self._policy, self._record(row), chunks, frames, named)

    def _record(self, row: Row) -> ResetRecord:
        """The row now, as a start of the world model."""
        model, state = self._model, row.actor_state
        images = images_among(model.more)
        seen = row.newest(self._span)[:: model.frame_stride]
        reference, *memory = (stack_views([obs[name] for name in images]) for obs in (state.first, *seen))
        first_command = np.asarray(state.first["command"], np.float32)
        null, steps = self._policy.actions.hold(first_command), len(state.taken)
        return ResetRecord(
            reference=reference,
            memory=np.stack(memory),
            command=np.asarray(row.obs["command"], np.float32),
            instruction=row.instruction,
            task=row.spec.task,
            step=steps,
            source=row.spec.describe(),
            memory_action=actions_before(state.taken, null, steps, model.memory_frames * model.frame_stride),
            reference_command=first_command,
            state=np.asarray(row.obs[STATE], np.float32) if STATE in model.more else None,
        )
