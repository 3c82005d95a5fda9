"""Training of NEUBAY: imagine a generation of long rollouts, learn from packed sequences, repeat.

Every draw comes from a stream named by its generation or update, so a killed run resumes bit for bit from its newest
checkpoint, which holds weights, optimizers and buffer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs, StateWorld
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, every, repeat
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig, long_rollouts
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.neubay.packed_sequences import PackedSequenceBuffer


@dataclass(frozen=True)
class NeubayTraining:
    """Settings of the training; the paper's for locomotion."""

    updates: int = 2_000_000  # gradient steps.
    rows: int = 2048  # packed rows per update.
    buffer: int = 40_000_000  # capacity of the buffer, rows.
    updates_per_step: float = 0.05  # gradient steps per step of a generation, its real history included.
    rollouts: LongRolloutConfig = field(default_factory=LongRolloutConfig)  # settings of the rollouts.
    checkpoint_generations: int = 50  # generations between checkpoints.

    def __post_init__(self) -> None:
        for name, least in (("updates", 1), ("rows", 2), ("checkpoint_generations", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"training.{name} must be at least {least}, got {getattr(self, name)}")
        if self.updates_per_step <= 0:
            raise SettingError(f"training.updates_per_step must be positive, got {self.updates_per_step}")


def train_neubay(
    agent: Neubay,
    world: StateWorld,
    episodes: Episodes,
    config: NeubayTraining,
    *,
    seed: int,
    folder: Path | None = None,
    log: MetricLog | None = None,
    on_generation: Callable[[int], None] | None = None,
) -> Logs:
    """Train until ``config.updates`` updates have been taken, resuming from ``folder``; None saves nothing.

    ``on_generation`` gets the number of updates after each generation, before its checkpoint; after a kill within it,
    again. Returns the last logs; empty when no update was left. Ctrl-C raises once the generation is complete and
    saved.
    """
    buffer = PackedSequenceBuffer(config.buffer, world.obs_size, world.action_size)
    state = _Generations(agent, buffer)
    logs = Logs()

    def take(_: int, progress: Progress) -> int:
        logs.clear()
        draws = stream(seed, "neubay", "rollouts", state.generation)
        packed_rows, found = long_rollouts(agent, world, episodes, config.rollouts, generator=draws)
        logs.update(found)
        for packed in packed_rows:
            buffer.add(packed)
        for _ in range(math.ceil(config.updates_per_step * sum(packed.steps for packed in packed_rows))):
            draws = stream(seed, "neubay", "update", agent.updates)
            logs.update(agent.learn(buffer.sample(config.rows, generator=draws), generator=draws))
            progress.advance()
            if agent.updates == config.updates:
                break
        state.generation += 1
        if log is not None:
            log.write("neubay", agent.updates - 1, logs)
        if on_generation is not None:
            on_generation(agent.updates)
        return agent.updates

    training = Training("neubay", folder, log, agent.modules, agent.optimizers, state)
    due = every(config.checkpoint_generations)
    repeat(training, take, config.updates, due=lambda *_: due(state.generation, 0), uncut="generation")
    return logs


@dataclass
class _Generations:
    agent: Neubay
    buffer: PackedSequenceBuffer
    generation: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"generation": self.generation, "updates": self.agent.updates, "buffer": self.buffer.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.generation, self.agent.updates = int(state_dict["generation"]), int(state_dict["updates"])
        self.buffer.load_state_dict(state_dict["buffer"])
