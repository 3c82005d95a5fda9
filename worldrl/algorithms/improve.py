"""Improvement in imagination: imagined groups, GRPO update, again. Resumable, and counter-based like every loop.

Iteration ``k`` draws its start states, the model's noise and the policy's tokens from streams named by ``k``, so a
killed run continues bit for bit from its newest checkpoint.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gymnasium.vector import AutoresetMode

from worldrl.algorithms.grpo import GrpoConfig, grpo_update
from worldrl.core.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, Progress
from worldrl.core.rng import stream, stream_seed
from worldrl.policies.exploration import Exploration
from worldrl.policies.token_policy import TokenPolicy
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagine import WorldModelVecEnv
from worldrl.rollout.imagined_rollouts import ImaginedRollouts, imagine_rollouts
from worldrl.rollout.reset_store import ResetStore
from worldrl.world_models.video import VideoWorldModel


@dataclass
class Improvement:
    """Settings of :func:`improve`.

    Attributes:
        iterations: batches of imagined groups.
        p_keyframe: probability that a group starts at a keyframe instead of an initial state.
        keyframe_margin: control steps before the keyframe.
        starts_per_task: initial states rendered per task.
        checkpoint_every: iterations between checkpoints.
        exploration: how the policy's actions are drawn in imagination.
        grpo: the update.
    """

    iterations: int = 60
    p_keyframe: float = 0.25
    keyframe_margin: int = 8
    starts_per_task: int = 128
    checkpoint_every: int = 5
    exploration: Exploration = field(default_factory=Exploration)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.p_keyframe <= 1:
            raise SettingError(f"improvement.p_keyframe must lie in [0, 1], got {self.p_keyframe}")
        for name in ("iterations", "starts_per_task", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise SettingError(f"improvement.{name} must be at least 1, got {getattr(self, name)}")


def imagined_env(
    world_model: VideoWorldModel, store: ResetStore, rule: SuccessRule, *, rows: int, horizon: dict[str, int]
) -> WorldModelVecEnv:
    """Make the environment of training: rows wait, once over, until all are."""
    return WorldModelVecEnv(
        world_model, store, rule, num_envs=rows, horizon=horizon, autoreset_mode=AutoresetMode.DISABLED
    )


def improve(
    policy: TokenPolicy,
    env: WorldModelVecEnv,
    config: Improvement,
    *,
    seed: int,
    folder: Path,
    log: MetricLog,
    series: str = "improve",
) -> list[float]:
    """Improve ``policy`` in place.

    Args:
        policy: the supervised policy, or an earlier round's.
        env: imagined, with ``groups × group_size`` rows.
        config: settings.
        seed: root of every draw.
        folder: checkpoints.
        log: receives each iteration's numbers.
        series: name in the log.

    Returns:
        Imagined success rate of each iteration.
    """
    reference = copy.deepcopy(policy).eval() if config.grpo.kl > 0 else None
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.grpo.learning_rate, weight_decay=config.grpo.weight_decay
    )
    state = {"modules": {"policy": policy}, "optimizers": {"optimizer": optimizer}}
    found = load_checkpoint(folder, **state)
    first, history = (found.step, list(found.extra["history"])) if found else (0, [])
    log.truncate(series, first)
    policy.eval()
    with Progress(series, config.iterations, start=first, unit="iterations") as progress:
        for k in range(first, config.iterations):
            rollouts = imagine_batch(env, policy, config, seed=stream_seed(seed, "improve", k))
            logs = grpo_update(
                policy,
                optimizer,
                rollouts,
                config.grpo,
                seed=stream_seed(seed, "update", k),
                temperature=config.exploration.temperature,
                reference=reference,
            )
            history.append(float(logs["grpo/imagined_success"]))
            log.write(series, k, logs)
            if (k + 1) % config.checkpoint_every == 0 or k + 1 == config.iterations:
                log.flush()
                save_checkpoint(folder, k + 1, **state, extra={"history": history})
            progress.advance(note=f"imagined success {history[-1]:.2f}")
    return history


def imagine_batch(env: WorldModelVecEnv, policy: TokenPolicy, config: Improvement, *, seed: int) -> ImaginedRollouts:
    """Imagine one batch of groups."""
    starts = env.store.sample(config.grpo.groups, config.p_keyframe, generator=stream(seed, "starts"))
    return imagine_rollouts(
        env, policy, starts, group_size=config.grpo.group_size, seed=seed, exploration=config.exploration
    )
