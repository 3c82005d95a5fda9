"""WSRL (Zhou et al. 2024, "Efficient Online RL Fine-Tuning Need Not Retain Offline Data"): from offline to online.

    1. warm-up: the pre-trained policy, frozen, collects ``warmup`` steps
    2. online: after each step one batch of the online buffer alone; ``updates_per_step`` critic steps, one on each part of
       it, then one step of temperature and actor on all of it

The warm-up recalibrates the values. The published agent is SAC with 10 critics, targets from 2 of them, no entropy in
the target, and layer normalisation in critics and policy. It is pre-trained with Cal-QL, or CQL on locomotion.

The environment's own state is not saved, so checkpoints are taken between episodes, each with a seed of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import require_value
from worldrl.core.interfaces import Logs, Stateful
from worldrl.core.rng import stream, stream_seed
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, repeat
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import DatasetInfo, env_action
from worldrl.methods.offline.agent import require_rules
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.online.online_world import OnlineWorld
from worldrl.rollout.vector.episodes import Acts

COUNTED = {"returns": "returns", "ends": "ends", "updates": "updates", "told": "world_logs"}
"""Of the online phase, besides what learns."""


@dataclass(frozen=True)
class WsrlConfig:
    """Settings of :func:`fine_tune`; defaults are the paper's."""

    steps: int = 500_000  # environment steps in all, the warm-up's among them.
    warmup: int = 5000  # steps collected by the frozen policy.
    updates_per_step: int = 4  # update-to-data ratio, the critic steps per environment step.
    batch_size: int = 1024  # rows drawn per environment step, shared by the critic steps.
    capacity: int = 1_000_000  # rows of the online buffer.
    log_every: int = 1000  # environment steps between log lines.
    # smallest number of environment steps between checkpoints; taken at the next end of an episode.
    checkpoint_every: int = 10_000

    def __post_init__(self) -> None:
        positive = "warmup updates_per_step batch_size capacity log_every checkpoint_every"
        require_rules(self, "online", {"zero or more": "steps", "at least 1": positive})
        require_value(
            self.batch_size % self.updates_per_step == 0,
            "online.batch_size",
            f"a multiple of online.updates_per_step={self.updates_per_step}",
            self.batch_size,
        )
        fits = self.steps == 0 or self.warmup <= self.steps
        require_value(fits, "online.warmup", f"at most online.steps={self.steps}", self.warmup)


@dataclass(frozen=True)
class FineTuned:
    """Result of :func:`fine_tune`."""

    returns: list[float] = field(default_factory=list[float])  # undiscounted return of each finished episode.
    ends: list[int] = field(default_factory=list[int])  # environment step at the end of each.
    updates: int = 0  # critic steps taken.


def fine_tune(
    name: str,
    agent: Any,
    env: gymnasium.Env[Any, Any],
    info: DatasetInfo,
    config: WsrlConfig,
    *,
    seed: int,
    folder: Path | None = None,
    log: MetricLog | None = None,
    explorer: Acts | None = None,
    world: OnlineWorld | None = None,
) -> FineTuned:
    """Continue learning online, in place, resuming from ``folder`` (None saves nothing).

    ``name``: of random streams and log; step ``k`` draws from ``stream(seed, name, k)``; ``env``: its ``state_dict``,
    if any, holds what a reset does not set; ``explorer``: acts after the warm-up in place of the agent; ``world``:
    gives imagined rows and keeps learning (both COPlanner). Raises ArtefactError: checkpoints are damaged or of
    another agent, or the disk refuses. Ctrl-C raises once the running episode is saved.
    """
    online = _Online(agent, env, info, TransitionBuffer(config.capacity), seed, name, world)

    def take(step: int, progress: Progress) -> int:
        generator = stream(seed, name, step)
        online.collect(step, agent.explore if explorer is None or step < config.warmup else explorer.act, generator)
        if step >= config.warmup:
            online.learn(step, config, generator)
        if log is not None and online.logs and (step + 1) % config.log_every == 0:
            returns = {"episode/return": online.returns[-1]} if online.returns else {}
            log.write(name, step, {**online.logs, **returns})
        return step + 1

    repeat(
        Training(name, folder, log, extra=online),
        take,
        config.steps,
        due=lambda step, saved: step - saved >= config.checkpoint_every,
        uncut="episode",
        may_stop=lambda: online.obs is None,  # an episode in progress is not part of a checkpoint
    )
    return FineTuned(online.returns, online.ends, online.updates)


@dataclass
class _Online:
    """The environment between two steps, the collected rows, and all learners."""

    agent: Any
    env: gymnasium.Env[Any, Any]
    info: DatasetInfo
    buffer: TransitionBuffer
    seed: int
    name: str
    world: OnlineWorld | None
    returns: list[float] = field(default_factory=list[float])
    ends: list[int] = field(default_factory=list[int])
    updates: int = 0
    world_logs: Logs = field(default_factory=dict[str, Tensor])
    logs: Logs = field(default_factory=dict[str, Tensor])
    obs: Any = None
    total: float = 0.0

    @property
    def parts(self) -> dict[str, Stateful]:
        given = {"agent": self.agent, "buffer": self.buffer, "world": self.world, "env": self.env}
        return {name: part for name, part in given.items() if hasattr(part, "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        """Return parts and counters; an episode in progress is not among them."""
        counted = {key: getattr(self, name) for key, name in COUNTED.items()}
        return counted | {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for key, name in COUNTED.items():
            setattr(self, name, state_dict[key])
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])

    def learn(self, step: int, config: WsrlConfig, generator: torch.Generator) -> None:
        if self.world is not None:
            found = self.world.refresh(step - config.warmup, self.buffer, self.agent, generator)
            self.world_logs = found or self.world_logs
        drawn = self.buffer.sample if self.world is None else partial(self.world.batch, self.buffer)
        batch = drawn(config.batch_size, generator=generator).to(self.agent.device)
        self.logs = self.world_logs | self.agent.update_parts(batch, config.updates_per_step, generator=generator)
        self.updates += config.updates_per_step

    def collect(self, step: int, explore: Callable[..., Tensor], generator: torch.Generator) -> None:
        """Take one step with an action of ``explore(obs, generator=…)``; begin an episode where none runs."""
        if self.obs is None:
            reset_seed = stream_seed(self.seed, self.name, "reset", len(self.returns)) % 2**31
            self.obs, self.total = self.env.reset(seed=reset_seed)[0], 0.0
        obs = torch.as_tensor(np.asarray(self.obs, np.float32))[None]
        action = explore(obs.to(self.agent.device), generator=generator).cpu()
        after, reward, terminated, truncated, _ = self.env.step(env_action(action[0].numpy(), self.info))
        self.buffer.add(_row(obs, action, float(reward), after, terminated, truncated))
        self.total += float(reward)
        self.obs = None if terminated or truncated else after
        if self.obs is None:
            self.returns.append(self.total)
            self.ends.append(step + 1)


def _row(obs: Tensor, action: Tensor, reward: float, after: Any, terminated: bool, truncated: bool) -> Transitions:
    next_obs = torch.as_tensor(np.asarray(after, np.float32))[None]
    flags = (torch.tensor([bool(flag)]) for flag in (terminated, truncated))
    return Transitions(obs, action, torch.tensor([reward]), next_obs, *flags)
