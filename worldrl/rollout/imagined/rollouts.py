"""One batch of imagined rollouts of a policy, as GRPO consumes it.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``L`` control steps per chunk, ``A`` numbers of an action and of a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Policy
from worldrl.core.observation import require_named
from worldrl.core.rng import row_streams, stream
from worldrl.core.types import CorrelatedNoise, PolicyObs, ResetRecord
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
    under_way = RolloutsUnderWay(env, policy, exploration)
    under_way.begin(np.arange(env.num_envs), [record for record in starts for _ in range(group_size)], seed)
    while under_way.running.any():
        under_way.advance()
    return under_way.take(np.arange(env.num_envs), torch.arange(len(starts)).repeat_interleave(group_size))


@dataclass(frozen=True)
class _Step:
    """One chunk of all rows; 0 where a row was over."""

    obs: PolicyObs  # before it.
    token: Tensor
    logp: Tensor
    action: Tensor
    running: Tensor  # bool ``[B]``.
    probability: Tensor


class RolloutsUnderWay:
    """Rollouts in the rows of an environment, each at a chunk of its own; rows that are over can begin anew.

    Raises SettingError (the policy observes what the environment does not show).
    """

    def __init__(self, env: WorldModelVecEnv, policy: Policy, exploration: Exploration) -> None:
        require_named(policy.more, env.world_model.more)
        if policy.n_obs_steps > env.n_obs_steps:
            raise SettingError(
                f"the policy observes {policy.n_obs_steps} control steps, and the environment keeps {env.n_obs_steps}; make it "
                f"with n_obs_steps={policy.n_obs_steps}"
            )
        self.env, self.policy, self.exploration = env, policy, exploration
        self.running = np.zeros(env.num_envs, bool)
        self.success = np.zeros(env.num_envs, bool)
        self.kept = np.zeros(env.num_envs, bool)  # rows whose rollouts were not taken yet
        self.began = np.zeros(env.num_envs, np.int64)  # chunk of ``steps`` with which each row began
        self.seeds = [0] * env.num_envs  # roots of each row's draws
        self.steps: list[_Step] = []  # chunks that rows under way need, the oldest first
        self._noise: CorrelatedNoise | None = None

    def begin(self, rows: NDArray[np.int64], records: list[ResetRecord], seed: int) -> None:
        """Begin a rollout from a record in each of ``rows``; ``seed`` is the root of their draws."""
        total = self.env.num_envs
        if len(rows) == total:
            self.env.reset(seed=seed, options={"records": records})
        else:
            self.env.reset(options={"records": records, "reset_mask": np.isin(np.arange(total), rows)})
        self.running[rows], self.success[rows], self.kept[rows] = True, False, True
        self.began[rows] = len(self.steps)
        for row in rows.tolist():
            self.seeds[row] = seed
        drawn = self.exploration.correlated_noise(row_streams(seed, ["habit"], total), self.policy.actions.size)
        self._noise = (
            drawn if self._noise is None or drawn is None else self._noise.replaced(torch.from_numpy(rows), drawn)
        )

    def advance(self) -> None:
        """Let the rows that are not over take one chunk."""
        env, rows = self.env, np.flatnonzero(self.running)
        index = torch.from_numpy(rows)
        number = len(self.steps) - self.began
        generators = [stream(self.seeds[row], "policy", row, int(number[row])) for row in rows.tolist()]
        with torch.no_grad():
            chunk = self.policy.act(
                self._observed(rows),
                generators=generators,
                temperature=self.exploration.temperature,
                correlated_noise=self._noise and self._noise.select(index),
            )
        action, token, logp = (
            _scatter(value.cpu(), index, env.num_envs) for value in (chunk.action, chunk.token, chunk.logp)
        )
        before = self._observed(np.arange(env.num_envs))
        waiting = torch.from_numpy(np.clip(np.float32(0), *self.policy.actions.bounds))  # any action in range
        taken = torch.where(torch.from_numpy(self.running)[:, None, None], action, waiting)
        _, reward, terminated, truncated, info = env.chunk_step(taken.numpy())
        running = torch.from_numpy(self.running.copy())
        self.steps.append(_Step(before, token, logp, action, running, torch.from_numpy(info["success_prob"])))
        self.success |= reward > 0
        self.running &= ~(terminated | truncated)

    def _observed(self, rows: NDArray[np.int64]) -> PolicyObs:
        return policy_obs(self.env.observed(rows), [self.env.records[row].instruction for row in rows], self.policy)

    def take(self, rows: NDArray[np.int64], group: Tensor) -> ImaginedRollouts:
        """Return the rollouts of ``rows``, which are over, and forget what no row under way needs."""
        records = [self.env.records[row] for row in rows]
        index = torch.from_numpy(rows)
        began = torch.from_numpy(self.began[rows])
        ran = torch.stack([step.running[index] for step in self.steps])
        length = (ran & (torch.arange(len(ran))[:, None] >= began)).sum(dim=0)
        at = torch.arange(int(length.max()))[:, None] + began
        valid = torch.arange(len(at))[:, None] < length
        at = at.clamp(max=len(self.steps) - 1)

        def of(values: Sequence[Tensor]) -> Tensor:
            return torch.stack(list(values))[at, index]

        def numbers(name: str) -> Tensor:
            value = of([getattr(step, name) for step in self.steps])
            return value * valid.reshape(*valid.shape, *[1] * (value.dim() - 2))

        seen = _together([step.obs for step in self.steps], of, [record.instruction for record in records])
        found = ImaginedRollouts(
            image=seen.image,
            command=seen.command,
            more=seen.more,
            past=seen.past,
            instruction=tuple(record.instruction for record in records),
            token=numbers("token"),
            logp=numbers("logp"),
            valid=valid,
            success=torch.from_numpy(self.success[rows]),
            group=group,
            task=tuple(record.task for record in records),
            end=self._observed(rows),
            action=numbers("action"),
            probability=numbers("probability"),
        )
        self.kept[rows] = False
        self._forget()
        return found

    def _forget(self) -> None:
        first = int(self.began[self.kept].min()) if self.kept.any() else len(self.steps)
        del self.steps[:first]
        self.began -= first

    _ROWS = ("running", "success", "kept", "began")

    def state_dict(self) -> dict[str, Any]:
        """Return what continues the rollouts under way bit by bit, as nested tensors, numbers and text; empty without any."""
        if not self.kept.any():
            return {}
        return {
            "env": tensors_of(self.env.get_state()),
            "rows": {name: torch.from_numpy(getattr(self, name).copy()) for name in self._ROWS},
            "seeds": list(self.seeds),
            "steps": [asdict(step) for step in self.steps],
            "noise": self._noise and asdict(self._noise),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore them; empty: no row has a rollout."""
        if not state_dict:
            for name in self._ROWS:
                getattr(self, name)[:] = 0
            self.steps = []
            return
        env = state_dict["env"]
        self.env.set_state({**env, **{name: arrays_of(env[name]) for name in ("counters", "records")}})
        for name in self._ROWS:
            setattr(self, name, state_dict["rows"][name].numpy().copy())
        self.seeds = list(state_dict["seeds"])
        self.steps = [_Step(**{**step, "obs": observation(step["obs"])}) for step in state_dict["steps"]]
        self._noise = state_dict["noise"] and CorrelatedNoise(**state_dict["noise"])


def observation(found: Mapping[str, Any]) -> PolicyObs:
    """Undo ``asdict`` of an observation."""
    return PolicyObs(**{**found, "past": tuple(observation(before) for before in found["past"])})


def tensors_of(value: Any) -> Any:
    """Replace the arrays in nested state by tensors."""
    if isinstance(value, Mapping):
        return {name: tensors_of(item) for name, item in value.items()}
    if isinstance(value, list):
        return [tensors_of(item) for item in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def arrays_of(value: Any) -> Any:
    """Replace the tensors in nested state by arrays."""
    if isinstance(value, Mapping):
        return {name: arrays_of(item) for name, item in value.items()}
    if isinstance(value, list):
        return [arrays_of(item) for item in value]
    return value.numpy() if isinstance(value, Tensor) else value


def _scatter(value: Tensor, rows: Tensor, total: int) -> Tensor:
    full = torch.zeros((total, *value.shape[1:]), dtype=value.dtype)
    full[rows] = value
    return full


def _together(
    seen: Sequence[PolicyObs], of: Callable[[Sequence[Tensor]], Tensor], instruction: Sequence[str]
) -> PolicyObs:
    """Join observations of several times by ``of``."""
    more = {name: of([obs.more[name] for obs in seen]) for name in seen[0].more}
    past = tuple(_together(steps, of, instruction) for steps in zip(*(obs.past for obs in seen), strict=True))
    image, command = of([obs.image for obs in seen]), of([obs.command for obs in seen])
    return PolicyObs(image, command, instruction, more, past)
