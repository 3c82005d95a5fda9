"""A policy with a planner: its candidates are imagined in a world model, and the best first chunk is executed.

At each decision the world model starts from the real frames, the policy's own chunk and its draws are imagined in one
batch, and the policy continues them greedily::

    score = mean over samples of max_t min_{0 <= k < debounce} p_{t+k},   p_t the imagined success probability

Below ``threshold`` the policy's own chunk is executed. All candidates of a decision meet the same noise, so they differ
by their actions alone. A decision's batch holds one episode: neighbours change none of its bits.

Shapes legend: ``N`` candidates, ``L`` control steps per chunk, ``A`` numbers of an action, ``K`` memory frames.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.observation import STATE, images_among, stack_views
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord
from worldrl.data.windows.batch import actions_before
from worldrl.rewards.success import debounced_score
from worldrl.rollout.agents.policy_actor import ActingPolicy, ActorState, PolicyActor
from worldrl.rollout.imagined.policy_rollouts import imagined_obs
from worldrl.rollout.planning.best_of_n import Plan, Score, best_of_n
from worldrl.rollout.planning.cem import cem
from worldrl.rollout.planning.config import Planner, PlanningConfig
from worldrl.rollout.planning.mppi import mppi
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import PlannedChunks
from worldrl.world_models.loading import open_world_model
from worldrl.world_models.video.following import roll_forward


@dataclass(frozen=True)
class PlannedPolicyActor(PolicyActor):
    """A policy and a planner; ``planner.config.world_model`` is a folder."""

    kind: ClassVar[str] = "planned-policy"
    planner: Planner = field(default_factory=lambda: Planner("best_of_n", PlanningConfig()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latency:
            raise SettingError(f"latency: a planner decides while the robot waits, got {self.latency}; give latency=0")

    def build(self) -> Actor:
        """Load policy and world model, inside the worker."""
        return _ActingPlanner(self)


def policy_with(planner: Planner | None, **fields: Any) -> PolicyActor:
    """Make the actor of a policy, alone without a planner; ``fields`` are those of :class:`PolicyActor`."""
    return PolicyActor(**fields) if planner is None else PlannedPolicyActor(**fields, planner=planner)


@dataclass
class _EpisodeState(ActorState):
    """One episode's first observation, and all actions that it has taken, ``[T, A]``."""

    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    taken: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))


class _ActingPlanner(ActingPolicy):
    """Plans row by row."""

    def __init__(self, spec: PlannedPolicyActor) -> None:
        super().__init__(spec)
        self._planner, self._config = spec.planner, spec.planner.config
        device = torch.device(spec.device)
        self._model = open_world_model(Path(self._config.world_model), device).eval()
        self._model.compute_dtype = resolve_dtype(self._config.dtype, device)
        self._span = (self._model.memory_frames - 1) * self._model.frame_stride + 1
        self.images_needed = max(self.images_needed, self._span)

    def begin(self, row: Row) -> None:
        super().begin(row)
        none_taken = np.zeros((0, self._policy.actions.size), np.float32)
        row.actor_state = _EpisodeState(**vars(row.actor_state), first=row.obs, taken=none_taken)
        row.planned = PlannedChunks()

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        executed = super().act(rows)
        for row, actions in zip(rows, executed, strict=True):
            state: _EpisodeState = row.actor_state
            state.taken = np.concatenate([state.taken, self._policy.actions.within(actions)])
        return executed

    def decide(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        own = super().decide(rows)
        with torch.inference_mode():
            return np.stack([self._decide(row, chunk) for row, chunk in zip(rows, own, strict=True)])

    def _decide(self, row: Row, own: NDArray[np.float32]) -> NDArray[np.float32]:
        began_s, before = time.monotonic(), row.planned or PlannedChunks()
        plan = self._plan(row, self._candidates(row, own))
        planned = plan.score >= self._config.threshold
        seconds = (before.seconds or 0.0) + time.monotonic() - began_s
        row.planned = PlannedChunks(before.planned + planned, before.alone + (not planned), seconds)
        return plan.action.numpy() if planned else own

    def _plan(self, row: Row, candidates: Tensor) -> Plan:
        score = self._score(row)
        if self._planner.name == "best_of_n":
            return best_of_n(candidates, score)
        low, high = (torch.from_numpy(bound) for bound in self._policy.actions.bounds)
        found = {"bounds": (low, high), "generator": self._stream(row, self._planner.name)}
        if self._planner.name == "cem":
            return cem(candidates, score, self._config.cem, **found)
        return mppi(candidates, score, self._config.mppi, **found)

    def _stream(self, row: Row, *names: str | int) -> torch.Generator:
        """Stream of a row's decision: of the episode and the time in it."""
        return stream(row.spec.seed, "plan", *row.spec.stream_names, len(row.actor_state.taken), *names)

    def _candidates(self, row: Row, own: NDArray[np.float32]) -> Tensor:
        """The policy's own chunk, then draws of it, ``[N, L, A]``."""
        count, exploration = self._config.candidates - 1, self._config.exploration
        constant = [self._stream(row, "constant", n) for n in range(count)]
        drawn = self._policy.act(
            self._shown([row] * count),
            generators=[self._stream(row, "candidate", n) for n in range(count)],
            temperature=exploration.temperature,
            correlated_noise=exploration.correlated_noise(constant, self._policy.actions.size),
        )
        first = torch.from_numpy(self._policy.actions.within(own))
        return torch.cat([first[None], drawn.action.float().cpu()])

    def _score(self, row: Row) -> Score:
        """Make the function that imagines a row's candidates within its time limit and scores them."""
        model, samples = self._model, self._config.samples
        start, chunks, frames = model.start([self._record(row)]), self._config.horizon, None
        if row.horizon is not None:
            left = row.horizon - len(row.actor_state.taken)
            chunks, frames = min(chunks, -(-left // model.chunk_length)), left // model.frame_stride

        def score(candidates: Tensor) -> Tensor:
            count = len(candidates)
            state = start.select(torch.zeros(count * samples, dtype=torch.int64))

            def act(chunk: int, state: Any) -> Tensor:
                return self._continue(row, chunk, state) if chunk else candidates.repeat(samples, 1, 1)

            def noise(chunk: int) -> list[torch.Generator]:
                return [self._stream(row, "noise", chunk, n // count) for n in range(count * samples)]

            found = [imagined.success_prob for _, imagined in roll_forward(model, state, chunks, act, noise)]
            probability = torch.cat(found, dim=1)[:, :frames].float().cpu().numpy()
            scores = debounced_score(probability, model.config.outcome.debounce)
            return torch.from_numpy(scores).view(samples, count).mean(dim=0)

        return score

    def _continue(self, row: Row, chunk: int, state: Any) -> Tensor:
        """The policy's greedy next chunks in imagination."""
        obs = imagined_obs(
            self._model, state, [row.instruction] * state.rows, self._policy.more, self._model.decode_last(state)
        )
        if not self._policy.needs_noise:
            return self._policy.act(obs, generators=None).action
        generators = [self._stream(row, "continue", chunk, n) for n in range(state.rows)]
        return self._policy.act(obs, generators=generators, temperature=0.0).action

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
