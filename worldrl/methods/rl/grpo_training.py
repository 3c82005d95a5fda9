"""GRPO's loop: imagined groups, update, again. Resumable, and counter-based like every loop.

Iteration ``k`` draws its start states, the model's noise and the policy's tokens from streams named by ``k``, so a
killed run continues bit for bit from its newest checkpoint.
"""

from __future__ import annotations

import copy
from pathlib import Path

from torch import Tensor

from worldrl.core.interfaces import Stateful, TrainablePolicy
from worldrl.core.rng import stream_seed
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.methods.rl.filtering import FilterResult, RolloutFilter
from worldrl.methods.rl.grpo import GrpoConfig, grpo_update
from worldrl.methods.rl.imagination import imagine_batch
from worldrl.policies.exploration import Exploration
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.rollouts import ImaginedRollouts


def train_grpo(
    policy: TrainablePolicy,
    env: WorldModelVecEnv,
    config: GrpoConfig,
    *,
    exploration: Exploration,
    p_keyframe: float,
    seed: int,
    folder: Path,
    log: MetricLog,
    series: str,
    judge: RolloutFilter | None = None,
) -> list[float]:
    """Improve ``policy`` in place.

    Args:
        policy: the supervised policy, or an earlier round's.
        env: imagined, with ``groups × group_size`` rows.
        config: settings.
        exploration: how actions are drawn in imagination.
        p_keyframe: probability that a group starts at a keyframe.
        seed: root of every draw.
        folder: checkpoints.
        log: receives each iteration's numbers.
        series: name in the log.
        judge: says how far each rollout counts; None believes all.

    Returns:
        Imagined success rate of each iteration.
    """
    reference = copy.deepcopy(policy).eval() if config.kl > 0 else None
    optimizer = policy.make_optimizer(config.learning_rate, config.weight_decay)
    modules: dict[str, Stateful] = {"policy": policy}
    optimizers = {"optimizer": optimizer}
    found = load_checkpoint(folder, modules=modules, optimizers=optimizers)
    first, history = (found.step, list(found.extra["history"])) if found else (0, [])
    log.truncate(series, first)
    policy.eval()
    with Progress(series, config.iterations, start=first, unit="iterations") as progress:
        for k in range(first, config.iterations):
            draw = stream_seed(seed, "improve", k)
            rollouts = imagine_batch(
                env, policy, exploration, group_size=config.group_size, p_keyframe=p_keyframe, seed=draw
            )
            judged = _judged(judge, env, rollouts, seed=stream_seed(seed, "judge", k))
            weight = 0.0 if judge is None else judge.term_weight
            believed = {"trust": judged.trust, "agreement": judged.agreement, "term_weight": weight}
            draw = stream_seed(seed, "update", k)
            given = {"seed": draw, "temperature": exploration.temperature, "reference": reference}
            logs = grpo_update(policy, optimizer, judged.rollouts, config, **given, **believed) | _means(judged)
            history.append(float(logs["grpo/imagined_success"]))
            log.write(series, k, logs)
            if (k + 1) % config.checkpoint_every == 0 or k + 1 == config.iterations:
                log.flush()
                extra = {"history": history}
                save_checkpoint(folder, k + 1, modules=modules, optimizers=optimizers, extra=extra)
            progress.advance(note=f"imagined success {history[-1]:.2f}")
    return history


def _judged(
    judge: RolloutFilter | None, env: WorldModelVecEnv, rollouts: ImaginedRollouts, *, seed: int
) -> FilterResult:
    """Judge rollouts; without a judge all are believed as they are."""
    return FilterResult(rollouts) if judge is None else judge.judge(env, rollouts, seed=seed)


def _means(judged: FilterResult) -> dict[str, Tensor]:
    """Mean of what was computed of trust and agreement, by its name in the log."""
    named = {"grpo/trusted_success": judged.trust, "grpo/agreement": judged.agreement}
    return {name: value.mean() for name, value in named.items() if value is not None}
