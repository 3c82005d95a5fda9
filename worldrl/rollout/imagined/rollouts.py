"""One batch of imagined rollouts of a policy, as GRPO consumes it.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``L`` control steps per chunk, ``A`` numbers of an action and of a command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.observation import require_named
from worldrl.core.rng import row_streams, stream
from worldrl.core.types import Chunk, PolicyObs, ResetRecord
from worldrl.policies.exploration import Exploration
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.recent import policy_obs


@dataclass(frozen=True)
class ImaginedRollouts:
    """Rollouts, padded to the longest.

    Before each chunk: image uint8 ``[T, B, Y, X, 3]`` and command float32 ``[T, B, A]``. Of each chunk: token int64 and
    logp float32 ``[T, B, L, A]`` under the acting policy, action float32 ``[T, B, L, A]``, probability of success
    float32 ``[T, B, F]`` for its ``F`` frames. ``valid`` bool ``[T, B]`` marks running rollouts: chunks after the first
    success do not count, unless the environment does not stop there. Of each rollout: imagined success bool ``[B]``,
    group int64 ``[B]``, and the observation ``end`` after its last chunk. Fields that are None were not stored.
    ``more`` is what the policy observes besides, ``[T, B, ...]`` by name, ``past`` its observations of the control
    steps before, the oldest first. ``version`` counts the iterations that the acting policy had learned from; None:
    not counted.
    """

    image: Tensor
    command: Tensor
    instruction: tuple[str, ...]
    token: Tensor
    logp: Tensor
    valid: Tensor
    success: Tensor
    group: Tensor
    task: tuple[str, ...]
    end: PolicyObs | None = None
    action: Tensor | None = None
    probability: Tensor | None = None
    more: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    past: Sequence[PolicyObs] = ()
    version: int | None = None

    def observed(self, chunk: Tensor, row: Tensor) -> PolicyObs:
        """Return what the policy observed before chunks ``chunk`` of rollouts ``row``, int64 ``[M]``."""
        obs = PolicyObs(self.image, self.command, self.instruction, self.more, self.past)
        return obs.take(lambda value: value[chunk, row], [self.instruction[r] for r in row.tolist()])


def imagine_rollouts(
    env: WorldModelVecEnv,
    policy: Policy,
    starts: Sequence[ResetRecord],
    *,
    group_size: int,
    seed: int,
    exploration: Exploration,
) -> ImaginedRollouts:
    """Act with the policy in imagination until every row succeeded or reached its horizon.

    ``env`` has a row for each rollout, autoreset off, and the observations that the policy wants. ``starts`` holds one
    start state per group, ``group_size`` the rollouts per start. ``seed`` is the root of this batch's
    draws of the policy and the model. Raises SettingError (the policy observes what the environment does not show).
    """
    require_named(policy.more, env.world_model.more)
    if policy.n_obs_steps > env.n_obs_steps:
        raise SettingError(
            f"the policy observes {policy.n_obs_steps} control steps, and the environment keeps {env.n_obs_steps}; make it with "
            f"n_obs_steps={policy.n_obs_steps}"
        )
    records = [record for record in starts for _ in range(group_size)]
    group = torch.arange(len(starts)).repeat_interleave(group_size)
    env.reset(seed=seed, options={"records": records})
    running = np.ones(env.num_envs, bool)
    success = np.zeros(env.num_envs, bool)
    chunks: list[tuple[PolicyObs, Chunk, np.ndarray]] = []
    probability: list[Tensor] = []
    everyone = np.arange(env.num_envs)
    waiting = np.clip(np.float32(0), *policy.actions.bounds)  # of rows that are over: any action in range

    def observed(rows: np.ndarray) -> PolicyObs:
        return policy_obs(env.observed(rows), [records[row].instruction for row in rows], policy)

    correlated_noise = exploration.correlated_noise(row_streams(seed, ["habit"], env.num_envs), policy.actions.size)
    while running.any():
        rows = np.flatnonzero(running)
        generators = [stream(seed, "policy", int(row), len(chunks)) for row in rows]
        with torch.no_grad():
            chunk = policy.act(
                observed(rows),
                generators=generators,
                temperature=exploration.temperature,
                correlated_noise=correlated_noise and correlated_noise.select(torch.from_numpy(rows)),
            )
        chunk = Chunk(chunk.action.cpu(), chunk.token.cpu(), chunk.logp.cpu())
        chunks.append((observed(everyone), chunk, rows))
        action = np.tile(waiting, (env.num_envs, chunk.action.shape[1], 1))
        action[rows] = chunk.action.numpy()
        _, reward, terminated, truncated, info = env.chunk_step(action)
        probability.append(torch.from_numpy(info["success_prob"]))
        success |= reward > 0
        running &= ~(terminated | truncated)
    return _stack(chunks, records, group, success, observed(everyone), torch.stack(probability))


def _scatter(value: Tensor, rows: np.ndarray, total: int) -> Tensor:
    full = torch.zeros((total, *value.shape[1:]), dtype=value.dtype)
    full[torch.from_numpy(rows)] = value
    return full


def _stacked(seen: Sequence[PolicyObs]) -> PolicyObs:
    more = {name: torch.stack([obs.more[name] for obs in seen]) for name in seen[0].more}
    past = tuple(_stacked(steps) for steps in zip(*(obs.past for obs in seen), strict=True))
    image, command = (torch.stack([getattr(obs, name) for obs in seen]) for name in ("image", "command"))
    return PolicyObs(image, command, seen[0].instruction, more, past)


def _stack(
    chunks: list[tuple[PolicyObs, Chunk, np.ndarray]],
    records: list[ResetRecord],
    group: Tensor,
    success: np.ndarray,
    end: PolicyObs,
    probability: Tensor,
) -> ImaginedRollouts:
    def stacked(name: str) -> Tensor:
        return torch.stack([_scatter(getattr(chunk, name), r, len(records)) for _, chunk, r in chunks])

    seen = _stacked([obs for obs, *_ in chunks])
    return ImaginedRollouts(
        image=seen.image,
        command=seen.command,
        more=seen.more,
        past=seen.past,
        instruction=tuple(record.instruction for record in records),
        token=stacked("token"),
        logp=stacked("logp"),
        valid=torch.stack([_scatter(torch.ones(len(r), dtype=torch.bool), r, len(records)) for *_, r in chunks]),
        success=torch.from_numpy(success),
        group=group,
        task=tuple(record.task for record in records),
        end=end,
        action=stacked("action"),
        probability=probability,
    )
