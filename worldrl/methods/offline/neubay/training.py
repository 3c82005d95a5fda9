"""Training of NEUBAY: imagine a generation of long rollouts, learn from packed sequences, repeat.

Every draw comes from a stream named by its generation or update, so a killed run resumes bit for bit from its newest
checkpoint, which holds weights, optimizers and buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs, StateWorld
from worldrl.core.rng import stream
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.storage.interrupts import interrupts
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig, long_rollouts
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.neubay.packed_sequences import PackedSequenceBuffer


@dataclass(frozen=True)
class NeubayTraining:
    """Settings of the training; the paper's for locomotion.

    Attributes:
        updates: gradient steps.
        rows: packed rows per update.
        buffer: capacity of the buffer, rows.
        updates_per_step: gradient steps per step of a generation, its real history included.
        rollouts: settings of the rollouts.
        checkpoint_generations: generations between checkpoints.
    """

    updates: int = 2_000_000
    rows: int = 2048
    buffer: int = 40_000_000
    updates_per_step: float = 0.05
    rollouts: LongRolloutConfig = field(default_factory=LongRolloutConfig)
    checkpoint_generations: int = 50

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
    """Train until ``config.updates`` updates have been taken, resuming from the newest checkpoint in ``folder``.

    Args:
        agent: freshly made; a checkpoint's weights replace its own.
        world: made with the rows of ``episodes``.
        episodes: the dataset.
        config: settings.
        seed: of every stream.
        folder: of the checkpoints; None saves none.
        log: receives the logs of each generation's rollouts and last update.
        on_generation: called with the number of updates after each generation, before its checkpoint; after a kill within
            it, it is called again.

    Returns:
        The last logs; empty when no update was left.

    Raises:
        KeyboardInterrupt: after Ctrl-C, once the present generation is complete and saved.
    """
    buffer = PackedSequenceBuffer(config.buffer, world.obs_size, world.action_size)
    generation, logs = _resume(agent, buffer, folder), Logs()
    if log is not None:
        log.truncate("neubay", agent.updates)
    with Progress("neubay", config.updates, start=agent.updates) as progress, interrupts("generation") as interrupted:
        while agent.updates < config.updates:
            draws = stream(seed, "neubay", "rollouts", generation)
            packed_rows, logs = long_rollouts(agent, world, episodes, config.rollouts, generator=draws)
            for packed in packed_rows:
                buffer.add(packed)
            for _ in range(math.ceil(config.updates_per_step * sum(packed.steps for packed in packed_rows))):
                draws = stream(seed, "neubay", "update", agent.updates)
                logs |= agent.learn(buffer.sample(config.rows, generator=draws), generator=draws)
                progress.advance()
                if agent.updates == config.updates:
                    break
            generation += 1
            if log is not None:
                log.write("neubay", agent.updates - 1, logs)
            if on_generation is not None:
                on_generation(agent.updates)
            stop = interrupted()
            if folder is not None and (stop or _due(generation, agent.updates, config)):
                _save(agent, buffer, generation, folder)
            if stop:
                raise KeyboardInterrupt
    return logs


def _due(generation: int, updates: int, config: NeubayTraining) -> bool:
    return generation % config.checkpoint_generations == 0 or updates >= config.updates


def _save(agent: Neubay, buffer: PackedSequenceBuffer, generation: int, folder: Path) -> None:
    extra = {"generation": generation, "updates": agent.updates, "buffer": buffer.state_dict()}
    save_checkpoint(folder, agent.updates, modules=agent.modules, optimizers=agent.optimizers, extra=extra)


def _resume(agent: Neubay, buffer: PackedSequenceBuffer, folder: Path | None) -> int:
    """Load the newest checkpoint; return the next generation."""
    found = None
    if folder is not None:
        found = load_checkpoint(folder, modules=agent.modules, optimizers=agent.optimizers)
    if found is None:
        return 0
    agent.updates = int(found.extra["updates"])
    buffer.load_state_dict(found.extra["buffer"])
    return int(found.extra["generation"])
