"""One batch of imagined rollouts of a policy, as GRPO consumes it.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``L`` control steps per chunk, ``A`` numbers of an action and of a command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from worldrl.core.interfaces import Policy
from worldrl.core.observation import require_named
from worldrl.core.rng import row_streams, stream
from worldrl.core.types import Chunk, PolicyObs, ResetRecord
from worldrl.policies.exploration import Exploration
from worldrl.rollout.imagined.env import WorldModelVecEnv


@dataclass(frozen=True)
class ImaginedRollouts:
    """Rollouts, padded to the longest.

    Before each chunk: image uint8 ``[T, B, Y, X, 3]`` and command float32 ``[T, B, A]``. Of each chunk: token int64 and
    logp float32 ``[T, B, L, A]`` under the acting policy, action float32 ``[T, B, L, A]``, probability of success
    float32 ``[T, B, F]`` for its ``F`` frames. ``valid`` bool ``[T, B]`` marks running rollouts: chunks after the first
    success do not count, unless the environment does not stop there. Of each rollout: imagined success bool ``[B]``,
    group int64 ``[B]``, and the observation ``end`` after its last chunk. Fields that are None were not stored.
    ``more`` is what the policy observes besides, ``[T, B, ...]`` by name.
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


def observation(obs: dict, rows: np.ndarray, more: Sequence[str]) -> PolicyObs:
    """Take ``rows`` of a vector environment's observation; ``more`` names what the policy observes besides."""
    return PolicyObs(
        image=torch.from_numpy(obs["image"][rows]),
        command=torch.from_numpy(obs["command"][rows]),
        instruction=[obs["instruction"][row] for row in rows],
        more={name: torch.from_numpy(obs[name][rows]) for name in more},
    )


def imagine_rollouts(
    env: WorldModelVecEnv,
    policy: Policy,
    starts: Sequence[ResetRecord],
    *,
    group_size: int | Sequence[int],
    seed: int,
    exploration: Exploration,
) -> ImaginedRollouts:
    """Act with the policy in imagination until every row succeeded or reached its horizon.

    ``env`` has a row for each rollout, and autoreset off. ``starts`` holds one start state per group, ``group_size``
    the rollouts per start, or of each one. ``seed`` is the root of this batch's draws of the policy and the model.
    Raises SettingError (the policy observes what the environment does not show).
    """
    require_named(policy.more, env.world_model.more)
    sizes = [group_size] * len(starts) if isinstance(group_size, int) else group_size
    records = [record for record, size in zip(starts, sizes, strict=True) for _ in range(size)]
    group = torch.arange(len(starts)).repeat_interleave(torch.tensor(sizes))
    obs, _ = env.reset(seed=seed, options={"records": records})
    running = np.ones(env.num_envs, bool)
    success = np.zeros(env.num_envs, bool)
    chunks: list[tuple[PolicyObs, Chunk, np.ndarray]] = []
    probability: list[Tensor] = []
    everyone = np.arange(env.num_envs)
    waiting = np.clip(np.float32(0), *policy.actions.bounds)  # of rows that are over: any action in range
    correlated_noise = exploration.correlated_noise(row_streams(seed, ["habit"], env.num_envs), policy.actions.size)
    while running.any():
        rows = np.flatnonzero(running)
        generators = [stream(seed, "policy", int(row), len(chunks)) for row in rows]
        with torch.no_grad():
            chunk = policy.act(
                observation(obs, rows, policy.more),
                generators=generators,
                temperature=exploration.temperature,
                correlated_noise=correlated_noise and correlated_noise.select(torch.from_numpy(rows)),
            )
        chunk = Chunk(chunk.action.cpu(), chunk.token.cpu(), chunk.logp.cpu())
        chunks.append((observation(obs, everyone, policy.more), chunk, rows))
        action = np.tile(waiting, (env.num_envs, chunk.action.shape[1], 1))
        action[rows] = chunk.action.numpy()
        obs, reward, terminated, truncated, info = env.chunk_step(action)
        probability.append(torch.from_numpy(info["success_prob"]))
        success |= reward > 0
        running &= ~(terminated | truncated)
    end = observation(obs, everyone, policy.more)
    return _stack(chunks, records, group, success, end, torch.stack(probability))


def _scatter(value: Tensor, rows: np.ndarray, total: int) -> Tensor:
    full = torch.zeros((total, *value.shape[1:]), dtype=value.dtype)
    full[torch.from_numpy(rows)] = value
    return full


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

    return ImaginedRollouts(
        image=torch.stack([seen.image for seen, *_ in chunks]),
        command=torch.stack([seen.command for seen, *_ in chunks]),
        more={name: torch.stack([seen.more[name] for seen, *_ in chunks]) for name in end.more},
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
