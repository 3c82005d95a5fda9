"""Candidate plans: rollouts of a policy from one real state, imagined in one batch and scored by their outcome.

    score = max_t min_{0 <= k < debounce} p_{t+k},   p_t the imagined success probability

All candidates meet the same noise of the world model, so they differ by their actions alone.

Shapes legend: ``N`` candidates, ``T`` control steps of a plan, ``L`` of a chunk, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.interfaces import Policy, WorldModel
from worldrl.core.observation import COMMAND
from worldrl.core.types import CorrelatedNoise, ResetRecord
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import debounced_score
from worldrl.rollout.imagined.recent import Recent, after_chunk, policy_obs, recorded
from worldrl.world_models.loading import AnyVideoModel


@dataclass(frozen=True)
class Candidates:
    """Imagines plans from ``record``, ``chunks`` ahead.

    Success counts in the first ``frames`` imagined frames (None: in all). ``stream`` names the decision's random streams.
    """

    model: AnyVideoModel
    policy: Policy
    record: ResetRecord
    chunks: int
    frames: int | None
    stream: Callable[..., torch.Generator]

    def imagine(self, given: Sequence[Tensor], exploration: Exploration | None = None) -> tuple[Tensor, Tensor]:
        """Imagine one plan for each of ``given``: its actions ``[<= T, A]``, then the policy's, greedy by default.

        Returns the plans ``[N, T, A]`` and their scores ``[N]``.
        """
        rows, length = len(given), self.model.chunk_length
        constant = [self.stream("constant", n) for n in range(rows)]
        noise = exploration and exploration.correlated_noise(constant, self.policy.actions.size)
        world = self._world
        state, shown = world.start([self.record]).select(torch.zeros(rows, dtype=torch.int64)), self._first(rows)
        plans, probabilities, imagined = list[Tensor](), list[Tensor](), None
        for chunk in range(self.chunks):
            parts = [actions[chunk * length : (chunk + 1) * length] for actions in given]
            if all(len(part) == length for part in parts):
                chosen = torch.stack(parts)
            else:
                recent = shown if imagined is None else after_chunk(shown, world, state, imagined)
                chosen = self._policy_chunk(chunk, recent, exploration, noise)
                for n, part in enumerate(parts):
                    chosen[n, : len(part)] = part
            plans.append(chosen)
            world_noise = [self.stream("noise", chunk) for _ in given]
            state, imagined = world.imagine(state, chosen, generators=world_noise)
            probabilities.append(imagined.success_prob)
        probability = torch.cat(probabilities, dim=1)[:, : self.frames]
        score = debounced_score(probability.float().cpu().numpy(), self.model.config.outcome.debounce)
        return torch.cat(plans, dim=1), torch.from_numpy(score)

    def score(self, plans: Tensor) -> Tensor:
        """Score whole plans ``[N, T, A]``."""
        return self.imagine(list(plans))[1]

    @property
    def _world(self) -> WorldModel:
        return self.model  # of either kind: a state belongs to the model that made it

    def _first(self, rows: int) -> Recent:
        """The real observation, in every row; a planned policy observes one at a time."""
        one = recorded([self.record], self.model.more, 1)
        return {name: value.expand(rows, *value.shape[1:]) for name, value in one.items()}

    def _policy_chunk(
        self, chunk: int, recent: Recent, exploration: Exploration | None, noise: CorrelatedNoise | None
    ) -> Tensor:
        """The policy's next chunk in every row ``[N, L, A]``."""
        rows = len(recent[COMMAND])
        obs = policy_obs(recent, [self.record.instruction] * rows, self.policy)
        if exploration is None and not self.policy.needs_noise:
            return self.policy.act(obs, generators=None).action.float().cpu()
        chosen = self.policy.act(
            obs,
            generators=[self.stream("policy", chunk, n) for n in range(rows)],
            temperature=exploration.temperature if exploration else 0.0,
            correlated_noise=noise,
        )
        return chosen.action.float().cpu()
