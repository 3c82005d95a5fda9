"""A policy as an actor: batched inference, once per chunk, and its timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.types import CorrelatedNoise, PolicyObs
from worldrl.policies.exploration import Exploration
from worldrl.policies.remote.address import refuse_temperature
from worldrl.rollout.chunk_timing import check_timing, splice
from worldrl.rollout.real.rows import Actor, Row, stack_obs


@dataclass(frozen=True)
class PolicyActor:
    """A trained policy from its folder, or behind the address ``folder``.

    ``exploration=None`` acts greedily. ``replan`` is the number of actions executed of each chunk (None: all),
    ``latency`` the control steps that a decision takes (``rollout.chunk_timing``).
    """

    folder: str
    kind: ClassVar[str] = "policy"
    exploration: Exploration | None = None
    replan: int | None = None
    device: str = "cpu"
    latency: int = 0

    def __post_init__(self) -> None:
        if self.latency < 0:
            raise SettingError(f"PolicyActor.latency: must be >= 0, got {self.latency}")
        if self.exploration is not None:
            refuse_temperature(self.folder, self.exploration.temperature)
        if self.replan is not None and self.replan < 1:
            raise SettingError(f"PolicyActor.replan: must be >= 1, or None for the whole chunk, got {self.replan}")

    def constant_noise(self, generator: torch.Generator, size: int) -> CorrelatedNoise | None:
        """Draw what stays the same over an episode."""
        return None if self.exploration is None else self.exploration.correlated_noise([generator], size)

    def build(self) -> Actor:
        """Load the policy, inside the worker."""
        return ActingPolicy(self)


@dataclass
class ActorState:
    """One episode's stream, its constant noise, and its last chunk, which a slow decision continues."""

    generator: torch.Generator
    constant_noise: CorrelatedNoise | None
    chunk: NDArray[np.float32] | None = None


class ActingPolicy:
    """Batched policy inference, once per chunk."""

    def __init__(self, spec: PolicyActor) -> None:
        from worldrl.rollout.agents.policy_folder import acting_policy, policy_place

        self._spec = spec
        self._policy = acting_policy(policy_place(spec.folder), spec.device)
        self._replan = check_timing(spec.replan, spec.latency, self._policy.chunk_length)
        self.images_needed = self._policy.n_obs_steps

    def begin(self, row: Row) -> None:
        """Open the episode's stream."""
        row.keep(self.images_needed)
        generator = stream(row.spec.seed, "act", "policy", *row.spec.stream_names)
        row.actor_state = ActorState(generator, self._spec.constant_noise(generator, self._policy.actions.size))

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Decide, and return what is executed until the next decision."""
        states: list[ActorState] = [row.actor_state for row in rows]
        decided = self.decide(rows)
        executed = [
            splice(state.chunk, actions, replan=self._replan, latency=self._spec.latency)
            for state, actions in zip(states, decided, strict=True)
        ]
        for state, actions in zip(states, decided, strict=True):
            state.chunk = actions
        return np.stack(executed)

    def decide(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Choose whole chunks ``[B, L, A]``."""
        with torch.inference_mode():
            chunk = self._policy.act(self._shown(rows), **self._draws([row.actor_state for row in rows]))
        return (chunk.action if chunk.decided is None else chunk.decided).float().cpu().numpy()

    def _shown(self, rows: Sequence[Row]) -> PolicyObs:
        return stack_obs(rows, self._spec.device, self._policy.more, self._policy.n_obs_steps)

    def _draws(self, states: Sequence[ActorState]) -> dict[str, Any]:
        """Arguments of ``act``: greedy, or drawn from the episodes' streams."""
        exploration = self._spec.exploration
        if exploration is None and not self._policy.needs_noise:
            return {"generators": None}
        noise = [state.constant_noise for state in states if state.constant_noise is not None]
        return {
            "generators": [state.generator for state in states],
            "temperature": 0.0 if exploration is None else exploration.temperature,
            "correlated_noise": CorrelatedNoise.join(noise) if noise else None,
        }
